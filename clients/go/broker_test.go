package tenbin

import (
	"bytes"
	"io"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
)

// patience bounds each wait for a packet.
const patience = 20 * time.Second

// broker is the broker's end of a connection, whose packets a test reads and writes.
type broker struct {
	t    *testing.T
	conn net.Conn
	ping []byte
}

func listen(t *testing.T) (net.Listener, *url.URL) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	return listener, &url.URL{Scheme: "mqtt", Host: listener.Addr().String()}
}

// accept answers the CONNECT of the next connection, and offers carriers if the client asks.
func accept(t *testing.T, listener net.Listener, carriers string) *broker {
	t.Helper()
	conn, err := listener.Accept()
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	b := &broker{t: t, conn: conn}
	connect := b.read(packets.CONNECT).(*packets.Connect)
	if user := paho.UserPropertiesFromPacketUser(connect.Properties.User); user.Get(property) != "?" {
		t.Fatalf("CONNECT does not ask for carriers: %v", user)
	}
	connack := &packets.Connack{Properties: &packets.Properties{}}
	if carriers != "" {
		connack.Properties.User = []packets.User{{Key: property, Value: carriers}}
	}
	b.write(connack)
	return b
}

// read returns the next packet of a type. It skips reports and pings before it, and keeps the body of the last ping.
func (b *broker) read(kind byte) packets.Packet {
	b.t.Helper()
	must(b.t, b.conn.SetReadDeadline(time.Now().Add(patience)))
	for {
		var raw bytes.Buffer
		packet, err := packets.ReadPacket(io.TeeReader(b.conn, &raw))
		if err != nil {
			b.t.Fatalf("waiting for packet type %d: %v", kind, err)
		}
		if packet.Type == packets.PINGREQ {
			b.ping = raw.Bytes()[2:]
			b.write(&packets.Pingresp{})
		}
		if packet.Type == kind {
			return packet.Content
		}
		if packet.Type != packets.PINGREQ && packet.Type != packets.PUBLISH {
			b.t.Fatalf("%s in place of packet type %d", packet.PacketType(), kind)
		}
	}
}

func (b *broker) write(packet packets.Packet) {
	b.t.Helper()
	_, err := packet.WriteTo(b.conn)
	must(b.t, err)
}

func (b *broker) subscribed(reason byte) {
	b.t.Helper()
	subscribe := b.read(packets.SUBSCRIBE).(*packets.Subscribe)
	if topic := subscribe.Subscriptions[0].Topic; topic != "$share/g/jobs/#" {
		b.t.Fatal(topic)
	}
	b.write(&packets.Suback{PacketID: subscribe.PacketID, Reasons: []byte{reason}, Properties: &packets.Properties{}})
}

func (b *broker) publish(id uint16, payload string) {
	b.t.Helper()
	b.write(&packets.Publish{
		Topic: "jobs/1", QoS: 1, PacketID: id, Payload: []byte(payload), Properties: &packets.Properties{},
	})
}

func (b *broker) acknowledged(id uint16) *packets.Puback {
	b.t.Helper()
	puback := b.read(packets.PUBACK).(*packets.Puback)
	if puback.PacketID != id {
		b.t.Fatalf("PUBACK of %d in place of %d", puback.PacketID, id)
	}
	return puback
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestCarriersOfReports(t *testing.T) {
	const beginning = `{"msgsInQueue":7,"processingTimePerMsg":`
	for _, carriers := range []string{"pingreq,ack,publish", "publish", ""} {
		listener, address := listen(t)
		conn, err := net.Dial("tcp", address.Host)
		must(t, err)
		config := paho.ClientConfig{Conn: conn}
		reporter := NewLoadReporter(&config, Options{Interval: 20 * time.Millisecond})
		reporter.Queue(7)
		client := paho.NewClient(config)
		go func() {
			connect := &paho.Connect{ClientID: "worker", CleanStart: true, KeepAlive: 60}
			reporter.Ask(connect)
			_, _ = client.Connect(t.Context(), connect)
		}()
		b := accept(t, listener, carriers)
		switch carriers {
		case "":
			b.read(packets.PINGREQ)
		case "publish":
			for range 2 {
				message := b.read(packets.PUBLISH).(*packets.Publish)
				isReport := strings.HasPrefix(string(message.Payload), beginning)
				if message.Topic != "$load" || message.QoS != 0 || !isReport {
					t.Errorf("%+v", message)
				}
			}
		default:
			for range 2 {
				if b.read(packets.PINGREQ); !strings.HasPrefix(string(b.ping), "\x00"+beginning) {
					t.Errorf("%q", b.ping)
				}
			}
			b.ping = nil
		}
		// The client's pinger pings at once.
		if len(b.ping) > 0 {
			t.Errorf("%q: a ping has a body: %q", carriers, b.ping)
		}
		must(t, client.Disconnect(&paho.Disconnect{}))
	}
}

func TestClientWithoutPingAnswersEnds(t *testing.T) {
	listener, address := listen(t)
	conn, err := net.Dial("tcp", address.Host)
	must(t, err)
	ended := make(chan error, 9)
	config := paho.ClientConfig{Conn: conn, OnClientError: func(err error) { ended <- err }}
	reporter := NewLoadReporter(&config, Options{Interval: 20 * time.Millisecond})
	client := paho.NewClient(config)
	go func() {
		connect := &paho.Connect{ClientID: "worker", CleanStart: true, KeepAlive: 1}
		reporter.Ask(connect)
		_, _ = client.Connect(t.Context(), connect)
	}()
	accept(t, listener, "pingreq")
	// Reading fails, too, when the client closes the connection.
	for {
		select {
		case err := <-ended:
			if strings.Contains(err.Error(), "PINGRESP timed out") {
				return
			}
		case <-time.After(patience):
			t.Fatal("it waits for ever")
		}
	}
}
