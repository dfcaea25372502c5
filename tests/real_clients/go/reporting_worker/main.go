// A worker of a share group that reports its load: reporting_worker HOST PORT GROUP FILTER SERVICE_TIME_MS.
//
// Prints "ready" when it has subscribed, then each message's payload when it is processed. A payload "retry" is rejected at
// its first delivery, and "dead" always. SIGTERM drains and ends it.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/paho"
	tenbin "github.com/tenbin-mqtt/tenbin/clients/go"
)

func main() {
	if len(os.Args) != 6 {
		log.Fatal("usage: reporting_worker HOST PORT GROUP FILTER SERVICE_TIME_MS")
	}
	milliseconds, err := strconv.Atoi(os.Args[5])
	if err != nil {
		log.Fatal("SERVICE_TIME_MS: ", err)
	}
	broker := &url.URL{Scheme: "mqtt", Host: net.JoinHostPort(os.Args[1], os.Args[2])}
	worker := tenbin.Worker{
		Config:     autopaho.ClientConfig{ServerUrls: []*url.URL{broker}},
		Group:      os.Args[3],
		Filter:     os.Args[4],
		Subscribed: func() { fmt.Println("ready") },
	}
	err = worker.Run(context.Background(), func(message *paho.Publish) error {
		time.Sleep(time.Duration(milliseconds) * time.Millisecond)
		payload := string(message.Payload)
		switch {
		case payload == "dead":
			return tenbin.Rejection{DeadLetter: "it says so"}
		case payload == "retry" && message.Properties.User.Get("deliveries") == "":
			return tenbin.Rejection{RetryAfter: 200 * time.Millisecond}
		}
		fmt.Println(payload)
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
}
