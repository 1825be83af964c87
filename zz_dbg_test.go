package tidemark
import ("testing";"fmt")
func TestZZ(t *testing.T){
	w := newSimWorld(t, 85, 3)
	w.trace = func(f string, a ...any){ fmt.Printf("%8.3f "+f+"\n", append([]any{w.now.Seconds()}, a...)...)}
	tp := w.createTopic("t", TopicConfig{Partitions: 1, ReplicationFactor: 2, MinISR: 1})
	w.describe(tp)
	fmt.Println(w.stored("t",0))
	w.brokers[2].crash(0)
	w.settle(3*simSession)
	w.describe(tp)
}
