// Package tenbin lets workers of Eclipse Paho's Go client (MQTT 5.0) report their load to Tenbin, and reject messages.
//
// [Worker] is a complete worker of a share group. [LoadReporter] serves programs with a client already. At other
// brokers both work, and send no reports.
package tenbin

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
	"github.com/eclipse/paho.golang/paho/session/state"
)

const (
	// eagerGap is the shortest time from a report to an early one.
	eagerGap = 100 * time.Millisecond
	// shortestInterval is the shortest one between regular reports; shorter ones count as this one.
	shortestInterval = time.Millisecond
	// longest is the longest processing time that the broker reads.
	longest = time.Hour
	// property is the User Property of CONNECT and CONNACK that negotiates the carriers of reports.
	property = "load-report"
)

// Options of a [LoadReporter]. The zero value has the defaults.
type Options struct {
	// Interval between regular reports; 0 means one second. Keep Alive shortens it if pings carry the reports.
	Interval time.Duration
	// RegularOnly turns early reports off. By default a report is also sent when the first message of a connection is
	// done, when the mean processing time has changed by half, and when the queue is four longer than twice the
	// reported one; at least 100 ms after the last report.
	RegularOnly bool
	// Force publishes reports even if CONNACK does not offer it.
	Force bool
}

// LoadReporter counts the messages and processing times of one client, and reports them to the broker.
//
// A report has the number of messages that wait and the mean processing time since the last report. The reporter sends
// them in pings if CONNACK offers that, else as messages to $load, else not at all. Any goroutine may use it.
type LoadReporter struct {
	options Options
	session *reportingSession
	// news wakes the sender when an early report is due.
	news chan struct{}

	mu      sync.Mutex
	carrier carrier
	// library has the messages that the client has read and not yet passed to a handler; nil before the first packet.
	library chan<- *packets.Publish
	// queue is the length of the application's queue.
	queue    int
	draining bool
	// done and total count messages and processing times since the last report.
	done  int64
	total time.Duration
	// hasNews tells that an early report is due.
	hasNews bool
	// reportedQueue and reportedMean are values of this connection's last report; the mean is 0 before the first.
	reportedQueue int
	reportedMean  time.Duration
}

// carrier is the packet that carries reports.
type carrier int

const (
	none carrier = iota
	pingreq
	publish
)

// NewLoadReporter makes a reporter for the client that [paho.NewClient] makes from config. Call [LoadReporter.Ask] with
// the CONNECT packet, too.
//
// It wraps Session and PingHandler of config, or makes them, and changes nothing else.
func NewLoadReporter(config *paho.ClientConfig, options Options) *LoadReporter {
	if options.Interval <= 0 {
		options.Interval = time.Second
	}
	options.Interval = max(options.Interval, shortestInterval)
	r := &LoadReporter{options: options, news: make(chan struct{}, 1)}
	r.session = &reportingSession{SessionManager: config.Session, reporter: r, lost: make(chan struct{})}
	close(r.session.lost)
	if config.Session == nil {
		r.session.SessionManager = state.NewInMemory()
		r.session.closes = true
	}
	config.Session = r.session
	if config.PingHandler == nil {
		config.PingHandler = paho.NewDefaultPinger()
	}
	config.PingHandler = &pinger{Pinger: config.PingHandler, reporter: r}
	return r
}

// NewAutoLoadReporter makes a reporter for the client that [autopaho.NewConnection] makes from config.
//
// It wraps Session, PingHandler and ConnectPacketBuilder of config, or makes them, and changes nothing else.
func NewAutoLoadReporter(config *autopaho.ClientConfig, options Options) *LoadReporter {
	r := NewLoadReporter(&config.ClientConfig, options)
	// The session outlives connections here.
	r.session.closes = false
	build := config.ConnectPacketBuilder
	config.ConnectPacketBuilder = func(connect *paho.Connect, address *url.URL) (*paho.Connect, error) {
		var err error
		if build != nil {
			connect, err = build(connect, address)
		}
		if err == nil {
			r.Ask(connect)
		}
		return connect, err
	}
	return r
}

// Ask adds the User Property to a CONNECT packet that asks the broker for its carriers of reports.
func (r *LoadReporter) Ask(connect *paho.Connect) {
	if connect.Properties == nil {
		connect.Properties = &paho.ConnectProperties{}
	}
	connect.Properties.User.Add(property, "?")
}

// Processing begins to measure the processing time of a message, and returns the function that ends it.
func (r *LoadReporter) Processing() (done func()) {
	begun := time.Now()
	var once sync.Once
	return func() { once.Do(func() { r.finish(time.Since(begun)) }) }
}

// Queue sets the length of the application's own queue. The reporter knows the client's queue, and adds its length.
func (r *LoadReporter) Queue(messages int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue = max(messages, 0)
	r.lookForNews()
}

// Drain asks the broker for no further messages until Resume. It is reported at once, and in every report.
//
// The broker gives messages to other members of the share group as long as one can take them.
func (r *LoadReporter) Drain() { r.setDraining(true) }

// Resume asks for messages again after Drain. It is reported at once.
func (r *LoadReporter) Resume() { r.setDraining(false) }

func (r *LoadReporter) setDraining(draining bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draining != draining {
		r.draining = draining
		r.tellNews()
	}
}

// finish adds the processing time of a message.
func (r *LoadReporter) finish(elapsed time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done++
	r.total += min(elapsed, longest)
	r.lookForNews()
}

// connected chooses the carrier for a new connection, whose broker knows no reports yet.
func (r *LoadReporter) connected(connack *packets.Connack) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.carrier = chosen(connack, r.options.Force)
	r.library = nil
	r.reportedQueue, r.reportedMean = 0, 0
	r.hasNews = false
	if r.draining {
		r.tellNews()
	}
}

func chosen(connack *packets.Connack, force bool) carrier {
	offered := map[string]bool{}
	if connack.Properties != nil {
		for _, user := range connack.Properties.User {
			if user.Key == property {
				for _, word := range strings.Split(user.Value, ",") {
					offered[strings.TrimSpace(word)] = true
				}
			}
		}
	}
	switch {
	case offered["pingreq"]:
		return pingreq
	case offered["publish"] || force:
		return publish
	}
	return none
}

// received notes the channel in which the client keeps messages for its handlers.
func (r *LoadReporter) received(library chan<- *packets.Publish) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.library = library
}

// take returns a report as JSON, and resets the mean.
func (r *LoadReporter) take() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hasNews = false
	queue, mean := r.queued(), r.mean()
	r.reportedQueue = queue
	if r.done > 0 {
		r.reportedMean = mean
	}
	r.done, r.total = 0, 0
	draining := ""
	if r.draining {
		draining = `,"draining":true`
	}
	milliseconds := strconv.FormatFloat(float64(mean)/float64(time.Millisecond), 'f', -1, 64)
	return fmt.Appendf(nil, `{"msgsInQueue":%d,"processingTimePerMsg":%s%s}`, queue, milliseconds, draining)
}

// needsEarly tells whether an early report is due.
func (r *LoadReporter) needsEarly() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hasNews
}

// packetReceived looks whether the client's queue has grown much.
func (r *LoadReporter) packetReceived() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lookForNews()
}

func (r *LoadReporter) queued() int { return r.queue + len(r.library) }

func (r *LoadReporter) mean() time.Duration {
	if r.done == 0 {
		return 0
	}
	return r.total / time.Duration(r.done)
}

func (r *LoadReporter) lookForNews() {
	if r.options.RegularOnly || r.hasNews {
		return
	}
	mean, reported := r.mean(), r.reportedMean
	isFar := mean != reported && (2*mean >= 3*reported || 3*mean <= 2*reported)
	if r.done > 0 && isFar || r.queued() >= 2*r.reportedQueue+4 {
		r.tellNews()
	}
}

func (r *LoadReporter) tellNews() {
	r.hasNews = true
	select {
	case r.news <- struct{}{}:
	default:
	}
}
