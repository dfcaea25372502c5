// A worker of a share group with Eclipse Paho's Go client (MQTT 5.0): worker HOST PORT CLIENT_ID FACTOR.
//
// Further arguments: "concurrency=N" and "receive-maximum=N" tell the broker so. A message's payload is
// "NUMBER SENT_US WORK_US"; its work takes FACTOR times WORK_US. Prints "NUMBER BEGUN_US" when a message's work begins.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/eclipse/paho.golang/paho"
)

func main() {
	host, port, clientID := os.Args[1], os.Args[2], os.Args[3]
	factor, err := strconv.Atoi(os.Args[4])
	must(err)
	conn, err := net.Dial("tcp", net.JoinHostPort(host, port))
	must(err)

	router := paho.NewStandardRouter()
	router.RegisterHandler("work", func(message *paho.Publish) {
		fields := strings.Fields(string(message.Payload))
		fmt.Println(fields[0], time.Now().UnixMicro())
		work, err := strconv.Atoi(fields[2])
		must(err)
		time.Sleep(time.Duration(work*factor) * time.Microsecond)
	})
	client := paho.NewClient(paho.ClientConfig{Conn: conn, Router: router})

	connect := &paho.Connect{ClientID: clientID, KeepAlive: 60, CleanStart: true, Properties: &paho.ConnectProperties{}}
	for _, argument := range os.Args[5:] {
		name, value, _ := strings.Cut(argument, "=")
		if name == "receive-maximum" {
			maximum, err := strconv.ParseUint(value, 10, 16)
			must(err)
			receiveMaximum := uint16(maximum)
			connect.Properties.ReceiveMaximum = &receiveMaximum
		} else {
			connect.Properties.User.Add(name, value)
		}
	}
	ctx := context.Background()
	_, err = client.Connect(ctx, connect)
	must(err)
	_, err = client.Subscribe(ctx, &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: "$share/g/work", QoS: 1}}})
	must(err)
	<-client.Done()
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
