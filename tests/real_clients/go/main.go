// Exercises a broker with Eclipse Paho's Go client (MQTT 5.0): client URL CA.
//
// The URL is tcp://HOST:PORT, tls://HOST:PORT, ws://HOST:PORT/PATH, wss://HOST:PORT/PATH or unix:PATH. CA is a file
// with the certificate that the broker's must come from.
//
// Prints a line for each step and ends with status 0, or says in one line what went wrong and ends with another
// status.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/coder/websocket"
	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
	"github.com/eclipse/paho.golang/paho/session"
	"github.com/eclipse/paho.golang/paho/session/state"
)

const patience = 20 * time.Second

var (
	broker *url.URL
	trust  *tls.Config
)

// client is a connection whose messages can be waited for.
type client struct {
	*paho.Client
	conn           net.Conn
	messages       chan *paho.Publish
	sessionPresent bool
}

type options struct {
	// session is kept from one connection to the next; nil: a clean one.
	session session.SessionManager
	will    *paho.WillMessage
}

func connect(id string, options options) *client {
	conn, err := dial()
	must(err)
	c := &client{conn: conn, messages: make(chan *paho.Publish, 1024)}
	c.Client = paho.NewClient(paho.ClientConfig{
		Conn:    conn,
		Session: options.session,
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(received paho.PublishReceived) (bool, error) {
			c.messages <- received.Packet
			return true, nil
		}},
		PacketTimeout: patience,
	})
	packet := &paho.Connect{ClientID: id, KeepAlive: 60, CleanStart: options.session == nil, WillMessage: options.will}
	if options.session != nil {
		expiry := uint32(3600)
		packet.Properties = &paho.ConnectProperties{SessionExpiryInterval: &expiry}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	connack, err := c.Client.Connect(ctx, packet)
	must(err)
	c.sessionPresent = connack.SessionPresent
	return c
}

// dial connects to the broker. The library writes a packet in parts, which a connection other than TCP has to lock.
func dial() (net.Conn, error) {
	var conn net.Conn
	var err error
	switch broker.Scheme {
	case "tls":
		conn, err = tls.Dial("tcp", broker.Host, trust)
	case "ws", "wss":
		conn, err = dialWebSocket()
	case "unix":
		conn, err = net.Dial("unix", broker.Path)
	default:
		return net.Dial("tcp", broker.Host)
	}
	if err != nil {
		return nil, err
	}
	return packets.NewThreadSafeConn(conn), nil
}

func dialWebSocket() (net.Conn, error) {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: trust}}
	options := &websocket.DialOptions{HTTPClient: client, Subprotocols: []string{"mqtt"}}
	conn, _, err := websocket.Dial(context.Background(), broker.String(), options)
	if err != nil {
		return nil, err
	}
	conn.SetReadLimit(-1)
	return websocket.NetConn(context.Background(), conn, websocket.MessageBinary), nil
}

func (c *client) subscribe(topic string, qos byte, identifier int) {
	subscribe := &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: topic, QoS: qos}}}
	if identifier > 0 {
		subscribe.Properties = &paho.SubscribeProperties{SubscriptionIdentifier: &identifier}
	}
	suback, err := c.Client.Subscribe(context.Background(), subscribe)
	must(err)
	check(slices.Equal(suback.Reasons, []byte{qos}), "granted %v, asked %d", suback.Reasons, qos)
}

func (c *client) publish(message *paho.Publish) {
	answer, err := c.Client.Publish(context.Background(), message)
	must(err)
	check(answer.ReasonCode < 0x80, "QoS %d message refused with %#x", message.QoS, answer.ReasonCode)
}

func (c *client) receive() *paho.Publish {
	select {
	case message := <-c.messages:
		return message
	case <-time.After(patience):
		panic("a message did not come")
	}
}

func (c *client) receiveNumbers(count int) []int {
	numbers := make([]int, count)
	for position := range numbers {
		number, err := strconv.Atoi(string(c.receive().Payload))
		must(err)
		numbers[position] = number
	}
	return numbers
}

func (c *client) disconnect() {
	must(c.Client.Disconnect(&paho.Disconnect{}))
	<-c.Done()
}

func publishAndReceive() {
	subscriber, publisher := connect("go-subscriber", options{}), connect("go-publisher", options{})
	subscriber.subscribe("go/+", 2, 0)
	for qos := range byte(3) {
		for _, size := range []int{0, 100, 100_000} {
			payload := bytes.Repeat([]byte{qos}, size)
			publisher.publish(&paho.Publish{Topic: "go/a", QoS: qos, Payload: payload})
			message := subscriber.receive()
			same := message.Topic == "go/a" && message.QoS == qos && !message.Retain && bytes.Equal(message.Payload, payload)
			check(same, "QoS %d, %d bytes: %v", qos, size, message)
		}
	}
	for qos := range byte(3) {
		for number := range 200 {
			publisher.publish(&paho.Publish{Topic: "go/order", QoS: qos, Payload: []byte(strconv.Itoa(number))})
		}
		numbers := subscriber.receiveNumbers(200)
		check(slices.Equal(numbers, upTo(200)), "order at QoS %d: %v", qos, numbers)
	}
	_, err := subscriber.Client.Unsubscribe(context.Background(), &paho.Unsubscribe{Topics: []string{"go/+"}})
	must(err)
	publisher.publish(&paho.Publish{Topic: "go/a", QoS: 1, Payload: []byte("nobody")})
	subscriber.disconnect()
	check(len(subscriber.messages) == 0, "a message after UNSUBSCRIBE")
	publisher.disconnect()
}

func retained() {
	publisher, subscriber := connect("go-publisher", options{}), connect("go-subscriber", options{})
	publisher.publish(&paho.Publish{Topic: "go-retained", QoS: 1, Retain: true, Payload: []byte("state")})
	subscriber.subscribe("go-retained", 1, 0)
	message := subscriber.receive()
	check(message.Retain && string(message.Payload) == "state", "retained message: %v", message)
	publisher.publish(&paho.Publish{Topic: "go-retained", QoS: 1, Retain: true})
	check(len(subscriber.receive().Payload) == 0, "the removal is forwarded")
	subscriber.disconnect()
	publisher.disconnect()
}

func will() {
	heir := connect("go-heir", options{})
	heir.subscribe("go-will", 2, 0)
	connect("go-polite", options{will: &paho.WillMessage{Topic: "go-will", QoS: 1, Payload: []byte("polite")}}).disconnect()
	mortal := connect("go-mortal", options{will: &paho.WillMessage{Topic: "go-will", QoS: 2, Payload: []byte("gone")}})
	must(mortal.conn.Close())
	message := heir.receive()
	check(message.QoS == 2 && string(message.Payload) == "gone", "will: %v", message)
	heir.disconnect()
}

func shared() {
	members := []*client{connect("go-member-1", options{}), connect("go-member-2", options{})}
	for _, member := range members {
		member.subscribe("$share/go/go-work", 1, 0)
	}
	publisher := connect("go-publisher", options{})
	for number := range 20 {
		publisher.publish(&paho.Publish{Topic: "go-work", QoS: 1, Payload: []byte(strconv.Itoa(number))})
	}
	numbers := append(members[0].receiveNumbers(10), members[1].receiveNumbers(10)...)
	slices.Sort(numbers)
	check(slices.Equal(numbers, upTo(20)), "shared messages: %v", numbers)
	for _, client := range append(members, publisher) {
		client.disconnect()
	}
}

func sessionResumption() {
	kept := state.NewInMemory()
	first := connect("go-session", options{session: kept})
	check(!first.sessionPresent, "a session before the first connection")
	first.subscribe("go-session", 2, 0)
	first.disconnect()
	publisher := connect("go-publisher", options{})
	for number := range 10 {
		publisher.publish(&paho.Publish{Topic: "go-session", QoS: byte(1 + number/5), Payload: []byte(strconv.Itoa(number))})
	}
	again := connect("go-session", options{session: kept})
	check(again.sessionPresent, "the session is gone")
	numbers := again.receiveNumbers(10)
	slices.Sort(numbers)
	check(slices.Equal(numbers, upTo(10)), "messages that waited: %v", numbers)
	again.disconnect()
	connect("go-session", options{}).disconnect()
	publisher.disconnect()
}

func properties() {
	client := connect("go-properties", options{})
	client.subscribe("go-properties", 1, 42)
	format, expiry := byte(1), uint32(100)
	sent := paho.PublishProperties{
		CorrelationData: []byte{0, 255},
		ContentType:     "text/plain",
		ResponseTopic:   "reply",
		PayloadFormat:   &format,
		MessageExpiry:   &expiry,
		User:            paho.UserProperties{{Key: "b", Value: "2"}, {Key: "a", Value: "1"}, {Key: "b", Value: "2"}},
	}
	client.publish(&paho.Publish{Topic: "go-properties", QoS: 1, Payload: []byte("x"), Properties: &sent})
	got := client.receive().Properties
	check(got.SubscriptionIdentifier != nil && *got.SubscriptionIdentifier == 42, "subscription identifier")
	check(bytes.Equal(got.CorrelationData, sent.CorrelationData), "correlation data: %v", got.CorrelationData)
	check(got.ContentType == sent.ContentType, "content type: %v", got.ContentType)
	check(got.ResponseTopic == sent.ResponseTopic, "response topic: %v", got.ResponseTopic)
	check(got.PayloadFormat != nil && *got.PayloadFormat == 1, "payload format")
	check(got.MessageExpiry != nil && *got.MessageExpiry >= 95 && *got.MessageExpiry <= 100, "message expiry")
	check(slices.Equal(got.User, sent.User), "user properties: %v", got.User)
	client.disconnect()
}

// manySubscriptions restores 9,000 subscriptions in one packet after the loss of a connection.
func manySubscriptions() {
	const count = 9000
	all := &paho.Subscribe{}
	for number := range count {
		all.Subscriptions = append(all.Subscriptions, paho.SubscribeOptions{Topic: fmt.Sprintf("go-many/%d", number)})
	}
	publisher := connect("go-publisher", options{})
	for range 2 {
		client := connect("go-many", options{})
		suback, err := client.Client.Subscribe(context.Background(), all)
		must(err)
		refused := slices.IndexFunc(suback.Reasons, func(reason byte) bool { return reason != 0 })
		check(refused < 0, "subscription %d is refused", refused)
		for _, number := range []int{0, count / 2, count - 1} {
			publisher.publish(&paho.Publish{Topic: fmt.Sprintf("go-many/%d", number), Payload: []byte(strconv.Itoa(number))})
			check(client.receiveNumbers(1)[0] == number, "a message of subscription %d", number)
		}
		must(client.conn.Close())
		<-client.Done()
	}
	publisher.disconnect()
}

func upTo(end int) []int {
	numbers := make([]int, end)
	for number := range numbers {
		numbers[number] = number
	}
	return numbers
}

func check(holds bool, format string, arguments ...any) {
	if !holds {
		panic(fmt.Sprintf(format, arguments...))
	}
}

func must(err error) {
	if err != nil {
		panic(err.Error())
	}
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: client URL CA")
		os.Exit(2)
	}
	steps := []struct {
		name string
		run  func()
	}{
		{"publishAndReceive", publishAndReceive},
		{"retained", retained},
		{"will", will},
		{"shared", shared},
		{"session", sessionResumption},
		{"properties", properties},
		{"manySubscriptions", manySubscriptions},
	}
	current := "start"
	defer func() {
		if what := recover(); what != nil {
			fmt.Fprintf(os.Stderr, "failed: %s: %v\n", current, what)
			os.Exit(1)
		}
	}()
	var err error
	broker, err = url.Parse(os.Args[1])
	must(err)
	authority, err := os.ReadFile(os.Args[2])
	must(err)
	trust = &tls.Config{RootCAs: x509.NewCertPool()}
	check(trust.RootCAs.AppendCertsFromPEM(authority), "no certificate is in %s", os.Args[2])
	for _, step := range steps {
		current = step.name
		step.run()
		fmt.Printf("%s at 5.0: ok\n", step.name)
	}
}
