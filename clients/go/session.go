package tenbin

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
	"github.com/eclipse/paho.golang/paho/session"
)

// Rejection is how a message is rejected. It is an error, so a handler can return it.
type Rejection struct {
	// RetryAfter is the pause until the next delivery, in whole milliseconds and a day at most; 0 leaves it to the
	// broker.
	RetryAfter time.Duration
	// DeadLetter is a reason for which no worker can process the message, 256 bytes at most: the broker makes it a dead
	// letter at once. "" lets it try again.
	DeadLetter string
}

// Error returns what the rejection asks for.
func (r Rejection) Error() string {
	if r.DeadLetter != "" {
		return "message rejected as a dead letter: " + r.DeadLetter
	}
	return fmt.Sprintf("message rejected, next try after %v", r.RetryAfter)
}

func (r Rejection) properties() *packets.Properties {
	properties := &packets.Properties{}
	if r.RetryAfter > 0 {
		value := strconv.FormatInt(r.RetryAfter.Milliseconds(), 10)
		properties.User = append(properties.User, packets.User{Key: "retry-after-ms", Value: value})
	}
	if r.DeadLetter != "" {
		properties.User = append(properties.User, packets.User{Key: "dead-letter", Value: r.DeadLetter})
	}
	return properties
}

// Reject makes the acknowledgement of a QoS 1 or 2 message a rejection: Reason Code 0x80 with the pause or the reason.
//
// Call it in a handler. With manual acknowledgement, call it at any time in place of Ack. A broker without a work-queue
// rule (on_reject of [[share]]), and any other broker, drops a rejected message.
func (r *LoadReporter) Reject(received paho.PublishReceived, rejection Rejection) error {
	id := received.Packet.PacketID
	if err := r.session.reject(id, rejection); err != nil {
		return err
	}
	err := received.Client.Ack(received.Packet)
	if errors.Is(err, paho.ErrManualAcknowledgmentDisabled) {
		return nil // The client acknowledges when the handler returns.
	}
	return err
}

// reportingSession is a session that tells a reporter of CONNACK and of messages, and that can reject messages.
//
// The client calls it for each acknowledgement, in the order in which they are sent.
type reportingSession struct {
	session.SessionManager
	reporter *LoadReporter
	// closes tells that the session ends with its only connection.
	closes bool

	mu   sync.Mutex
	conn io.Writer
	// lost is closed while there is no connection.
	lost chan struct{}
	// unacknowledged has the messages of this connection that were not acknowledged, with their rejections.
	unacknowledged map[uint16]*Rejection
	// finishAfter is the number of acknowledgements until finished is closed.
	finishAfter int
	finished    chan struct{}
}

// ConAckReceived begins a connection.
func (s *reportingSession) ConAckReceived(conn io.Writer, connect *packets.Connect, connack *packets.Connack) error {
	s.reporter.connected(connack)
	s.mu.Lock()
	s.conn, s.lost, s.unacknowledged = conn, make(chan struct{}), map[uint16]*Rejection{}
	s.mu.Unlock()
	return s.SessionManager.ConAckReceived(conn, connect, connack)
}

// ConnectionLost ends a connection. A nil packet is the last call for it.
func (s *reportingSession) ConnectionLost(disconnect *packets.Disconnect) error {
	s.mu.Lock()
	if s.conn != nil {
		s.conn = nil
		close(s.lost)
		s.finish(0)
	}
	s.mu.Unlock()
	err := s.SessionManager.ConnectionLost(disconnect)
	if s.closes && disconnect == nil {
		err = errors.Join(err, s.SessionManager.Close())
	}
	return err
}

// PacketReceived notes a message that is to be acknowledged.
func (s *reportingSession) PacketReceived(packet *packets.ControlPacket, library chan<- *packets.Publish) error {
	s.reporter.received(library)
	// The session keeps a message that it has passed on before.
	passed := make(chan *packets.Publish, 1)
	err := s.SessionManager.PacketReceived(packet, passed)
	select {
	case message := <-passed:
		s.mu.Lock()
		s.unacknowledged[message.PacketID] = nil
		s.mu.Unlock()
		library <- message
	default:
	}
	return err
}

// Ack acknowledges or rejects a message.
func (s *reportingSession) Ack(message *packets.Publish) error {
	s.mu.Lock()
	rejection := s.unacknowledged[message.PacketID]
	delete(s.unacknowledged, message.PacketID)
	conn := s.conn
	s.mu.Unlock()
	var err error
	switch {
	case rejection == nil:
		err = s.SessionManager.Ack(message)
	case conn != nil:
		_, err = rejectionPacket(message, *rejection).WriteTo(conn)
	}
	s.mu.Lock()
	s.finish(s.finishAfter - 1)
	s.mu.Unlock()
	return err
}

func (s *reportingSession) reject(id uint16, rejection Rejection) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.unacknowledged[id]; !ok || s.conn == nil {
		return fmt.Errorf("message %d cannot be rejected: QoS 0, acknowledged, or of an earlier connection", id)
	}
	s.unacknowledged[id] = &rejection
	return nil
}

// finishing returns a channel that is closed when all present messages are acknowledged, or the connection is lost.
func (s *reportingSession) finishing() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finished = make(chan struct{})
	after := len(s.unacknowledged)
	if s.conn == nil {
		after = 0
	}
	s.finish(after)
	return s.finished
}

// finish sets the number of acknowledgements until the session is finished. The caller holds mu.
func (s *reportingSession) finish(after int) {
	s.finishAfter = after
	if s.finished == nil || after > 0 {
		return
	}
	select {
	case <-s.finished:
	default:
		close(s.finished)
	}
}

func rejectionPacket(message *packets.Publish, rejection Rejection) *packets.ControlPacket {
	const unspecified = packets.PubackUnspecifiedError
	if message.QoS == 2 {
		packet := packets.NewControlPacket(packets.PUBREC)
		packet.Content = &packets.Pubrec{
			PacketID: message.PacketID, ReasonCode: unspecified, Properties: rejection.properties(),
		}
		return packet
	}
	packet := packets.NewControlPacket(packets.PUBACK)
	packet.Content = &packets.Puback{
		PacketID: message.PacketID, ReasonCode: unspecified, Properties: rejection.properties(),
	}
	return packet
}
