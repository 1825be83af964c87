package tidemark

import (
	"github.com/tidemark-log/tidemark/protocol"
)

// member is a broker's view of the cluster: the image that the Controller feeds
// it, and who the Controller is.
type member struct {
	controller      int32 // -1: not known
	controllerEpoch int32 // the highest seen; lower ones are refused (CE-5)
	seq             uint64
	whole           bool // the image is complete as of seq
	storeOK         bool
	topics          map[protocol.UUID]protocol.Topic
	states          map[protocol.PartitionID]*protocol.PartitionState
	incoming        *member // a whole image on its way
}

func newMember() *member {
	return &member{
		controller: -1, controllerEpoch: -1,
		topics: make(map[protocol.UUID]protocol.Topic), states: make(map[protocol.PartitionID]*protocol.PartitionState),
	}
}

// onController takes what the coordination store says of the Controller.
func (m *member) onController(broker, epoch int32) {
	if epoch < m.controllerEpoch {
		return // the watch is behind what the Controller itself has told
	}
	m.controller = broker
	if epoch > m.controllerEpoch {
		m.controllerEpoch, m.whole, m.incoming = epoch, false, nil
	}
}

// onUpdate takes an update. It returns the acknowledgement, whether the update
// was taken, and whether it completed a whole image. Updates of an older Controller
// are refused, and a gap is answered with a request for the whole image (D17).
func (m *member) onUpdate(from int32, u *protocol.Update) (ack protocol.UpdateAck, taken, completed bool) {
	if u.ControllerEpoch < m.controllerEpoch {
		return protocol.UpdateAck{ControllerEpoch: m.controllerEpoch, Seq: u.Seq, Code: protocol.StaleController}, false, false
	}
	if u.ControllerEpoch > m.controllerEpoch {
		m.controllerEpoch, m.whole, m.incoming = u.ControllerEpoch, false, nil
	}
	m.controller = from
	ack = protocol.UpdateAck{ControllerEpoch: u.ControllerEpoch, Seq: u.Seq}
	switch {
	case u.Full:
		m.incoming = newMember()
	case u.Seq != m.seq+1 || (!m.whole && m.incoming == nil):
		m.whole, m.incoming = false, nil
		ack.Code = protocol.Gap
		return ack, false, false
	}
	m.seq, m.storeOK = u.Seq, u.StoreOK
	into := m
	if m.incoming != nil {
		into = m.incoming
	}
	for _, id := range u.Deleted {
		into.drop(id)
	}
	for _, t := range u.Topics {
		into.topics[t.ID] = t
	}
	for i := range u.States {
		into.states[u.States[i].ID] = &u.States[i].State
	}
	completed = m.incoming != nil && !u.More
	if completed {
		// What the image does not name is forgotten here; no data is touched (D3).
		m.topics, m.states, m.whole, m.incoming = m.incoming.topics, m.incoming.states, true, nil
	}
	return ack, true, completed
}

// drop takes a deleted topic out of the image.
func (m *member) drop(id protocol.UUID) {
	for n := range m.topics[id].Config.Partitions {
		delete(m.states, protocol.PartitionID{Topic: id, Partition: n})
	}
	delete(m.topics, id)
}
