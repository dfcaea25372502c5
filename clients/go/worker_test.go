package tenbin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
	"github.com/eclipse/paho.golang/paho/session"
	"github.com/eclipse/paho.golang/paho/session/state"
)

// run starts a worker, and returns the function that ends it and the channel with its error.
func run(t *testing.T, config autopaho.ClientConfig, process func(*paho.Publish) error) (func(), chan error) {
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	worker := Worker{Config: config, Group: "g", Filter: "jobs/#"}
	go func() { ended <- worker.Run(ctx, process) }()
	return end, ended
}

func config(address *url.URL) autopaho.ClientConfig {
	return autopaho.ClientConfig{ServerUrls: []*url.URL{address}}
}

func expectEnd(t *testing.T, ended chan error) error {
	t.Helper()
	select {
	case err := <-ended:
		return err
	case <-time.After(patience):
		t.Fatal("the worker does not end")
		return nil
	}
}

func TestWorkerAcknowledgesAfterItsWorkAndRejects(t *testing.T) {
	listener, address := listen(t)
	end, ended := run(t, config(address), func(message *paho.Publish) error {
		switch string(message.Payload) {
		case "later":
			return fmt.Errorf("wrapped: %w", Rejection{RetryAfter: 1500 * time.Millisecond})
		case "never":
			return Rejection{DeadLetter: "unreadable"}
		case "fails":
			return errors.New("some error")
		}
		return nil
	})
	b := accept(t, listener, "pingreq")
	b.subscribed(1)
	cases := []struct {
		payload string
		reason  byte
		user    string
	}{
		{"fine", 0, "[]"},
		{"later", 0x80, "[{retry-after-ms 1500}]"},
		{"never", 0x80, "[{dead-letter unreadable}]"},
		{"fails", 0x80, "[]"},
		{"fine", 0, "[]"},
	}
	for _, c := range cases {
		b.publish(9, c.payload)
		puback := b.acknowledged(9)
		if user := fmt.Sprint(puback.Properties.User); puback.ReasonCode != c.reason || user != c.user {
			t.Errorf("%s: 0x%02X %s", c.payload, puback.ReasonCode, user)
		}
	}
	end()
	unsubscribe := b.read(packets.UNSUBSCRIBE).(*packets.Unsubscribe)
	b.write(&packets.Unsuback{PacketID: unsubscribe.PacketID, Reasons: []byte{0}, Properties: &packets.Properties{}})
	b.read(packets.DISCONNECT)
	must(t, expectEnd(t, ended))
}

func TestWorkerFinishesItsMessagesBeforeItEnds(t *testing.T) {
	for _, expiry := range []uint32{0, 60} {
		listener, address := listen(t)
		begun, goOn := make(chan string, 9), make(chan struct{})
		lasting := config(address)
		lasting.SessionExpiryInterval = expiry
		end, ended := run(t, lasting, func(message *paho.Publish) error {
			begun <- string(message.Payload)
			<-goOn
			return nil
		})
		b := accept(t, listener, "pingreq")
		b.subscribed(1)
		b.publish(1, "first")
		if <-begun != "first" {
			t.Error("the first one")
		}
		end()
		if expiry == 0 {
			unsubscribe := b.read(packets.UNSUBSCRIBE).(*packets.Unsubscribe)
			b.publish(2, "before UNSUBACK")
			b.write(&packets.Unsuback{
				PacketID: unsubscribe.PacketID, Reasons: []byte{0}, Properties: &packets.Properties{},
			})
		} else {
			// The worker has noted its messages before it reports that it drains.
			for !strings.Contains(string(b.ping), "draining") {
				b.read(packets.PINGREQ)
			}
			b.publish(2, "too late")
		}
		close(goOn)
		b.acknowledged(1)
		if expiry == 0 {
			b.acknowledged(2)
		}
		b.read(packets.DISCONNECT)
		must(t, expectEnd(t, ended))
		if expiry > 0 && len(begun) > 0 {
			t.Error("begun:", <-begun)
		}
	}
}

// watchedSession tells of the loss of a connection.
type watchedSession struct {
	session.SessionManager
	lost chan struct{}
}

func (s watchedSession) ConnectionLost(disconnect *packets.Disconnect) error {
	select {
	case s.lost <- struct{}{}:
	default:
	}
	return s.SessionManager.ConnectionLost(disconnect)
}

func TestWorkerLeavesMessagesOfALostConnectionAndSubscribesAgain(t *testing.T) {
	listener, address := listen(t)
	begun, goOn, lost := make(chan string, 9), make(chan struct{}), make(chan struct{}, 1)
	watched := config(address)
	watched.Session = watchedSession{state.NewInMemory(), lost}
	end, ended := run(t, watched, func(message *paho.Publish) error {
		begun <- string(message.Payload)
		<-goOn
		return nil
	})
	b := accept(t, listener, "pingreq")
	b.subscribed(1)
	b.publish(1, "begun")
	b.publish(2, "not begun")
	if <-begun != "begun" {
		t.Error("the first one")
	}
	must(t, b.conn.Close())
	<-lost
	close(goOn)
	b = accept(t, listener, "pingreq")
	b.subscribed(1)
	b.publish(1, "again")
	b.acknowledged(1)
	if payload := <-begun; payload != "again" {
		t.Error(payload)
	}
	must(t, b.conn.Close())
	must(t, listener.Close())
	end()
	must(t, expectEnd(t, ended))
}

func TestRefusedSubscriptionEndsTheWorker(t *testing.T) {
	listener, address := listen(t)
	_, ended := run(t, config(address), func(*paho.Publish) error { return nil })
	b := accept(t, listener, "")
	b.subscribed(0x87)
	unsubscribe := b.read(packets.UNSUBSCRIBE).(*packets.Unsubscribe)
	b.write(&packets.Unsuback{PacketID: unsubscribe.PacketID, Reasons: []byte{0x11}, Properties: &packets.Properties{}})
	err := expectEnd(t, ended)
	if err == nil || err.Error() != "the broker refused $share/g/jobs/# with Reason Code 0x87" {
		t.Error(err)
	}
}

func TestWrongNamesAreErrors(t *testing.T) {
	for _, worker := range []Worker{{Filter: "a"}, {Group: "a/b", Filter: "a"}, {Group: "a+", Filter: "a"}, {Group: "a"}} {
		if err := worker.Run(t.Context(), nil); err == nil {
			t.Errorf("%+v", worker)
		}
	}
}

func TestOnlyMessagesWithoutAcknowledgementCanBeRejected(t *testing.T) {
	listener, address := listen(t)
	conn, err := net.Dial("tcp", address.Host)
	must(t, err)
	received := make(chan paho.PublishReceived, 1)
	config := paho.ClientConfig{Conn: conn, EnableManualAcknowledgment: true, SendAcksInterval: time.Millisecond}
	config.OnPublishReceived = []func(paho.PublishReceived) (bool, error){func(p paho.PublishReceived) (bool, error) {
		received <- p
		return true, nil
	}}
	reporter := NewLoadReporter(&config, Options{})
	client := paho.NewClient(config)
	go func() {
		connect := &paho.Connect{ClientID: "worker", CleanStart: true}
		reporter.Ask(connect)
		_, _ = client.Connect(t.Context(), connect)
	}()
	b := accept(t, listener, "")
	b.write(&packets.Publish{Topic: "jobs/1", QoS: 2, PacketID: 3, Properties: &packets.Properties{}})
	message := <-received
	must(t, reporter.Reject(message, Rejection{RetryAfter: time.Second}))
	pubrec := b.read(packets.PUBREC).(*packets.Pubrec)
	if pubrec.PacketID != 3 || pubrec.ReasonCode != 0x80 || len(pubrec.Properties.User) != 1 {
		t.Errorf("%+v", pubrec)
	}
	if err := reporter.Reject(message, Rejection{}); err == nil {
		t.Error("it is acknowledged")
	}
	b.write(&packets.Publish{Topic: "jobs/1", Properties: &packets.Properties{}})
	if err := reporter.Reject(<-received, Rejection{}); err == nil {
		t.Error("QoS 0")
	}
	must(t, client.Disconnect(&paho.Disconnect{}))
}
