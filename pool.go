package tidemark

// pool runs calls that may block, such as cold reads and calls to the
// coordination store, on a fixed number of goroutines.
type pool struct {
	b    *Broker
	jobs *mailbox[func()]
	work chan func()
}

func newPool(b *Broker) *pool {
	return &pool{b: b, jobs: newMailbox[func()](), work: make(chan func())}
}

// submit queues a call. It never blocks. Calls that were not begun when the
// broker stops are dropped.
func (p *pool) submit(job func()) { p.jobs.put(job) }

// start runs the pool on the given number of workers and one goroutine that
// hands out the calls.
func (p *pool) start(workers int) {
	p.b.spawn(func() {
		var jobs []func()
		for {
			select {
			case <-p.b.stopping:
				return
			case <-p.jobs.ready:
			}
			jobs = p.jobs.take(jobs)
			for _, job := range jobs {
				select {
				case <-p.b.stopping:
					return
				case p.work <- job:
				}
			}
		}
	})
	for range workers {
		p.b.spawn(func() {
			for {
				select {
				case <-p.b.stopping:
					return
				case job := <-p.work:
					job()
				}
			}
		})
	}
}
