package tenbin

import (
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
)

func newReporter(options Options) *LoadReporter {
	return NewLoadReporter(&paho.ClientConfig{}, options)
}

func expectReport(t *testing.T, r *LoadReporter, expected string) {
	t.Helper()
	if report := string(r.take()); report != expected {
		t.Errorf("%s instead of %s", report, expected)
	}
}

func TestTakeResetsTheMeanAndNotTheQueue(t *testing.T) {
	r := newReporter(Options{})
	r.Queue(2)
	r.finish(10 * time.Millisecond)
	r.finish(15 * time.Millisecond)
	expectReport(t, r, `{"msgsInQueue":2,"processingTimePerMsg":12.5}`)
	expectReport(t, r, `{"msgsInQueue":2,"processingTimePerMsg":0}`)
	r.Drain()
	r.finish(2 * time.Hour)
	expectReport(t, r, `{"msgsInQueue":2,"processingTimePerMsg":3600000,"draining":true}`)
}

func TestQueuesOfClientAndApplicationAddUp(t *testing.T) {
	r := newReporter(Options{})
	library := make(chan *packets.Publish, 3)
	r.received(library)
	library <- nil
	r.Queue(2)
	expectReport(t, r, `{"msgsInQueue":3,"processingTimePerMsg":0}`)
	r.Queue(-1)
	expectReport(t, r, `{"msgsInQueue":1,"processingTimePerMsg":0}`)
}

func TestProcessingCountsOnce(t *testing.T) {
	r := newReporter(Options{})
	done := r.Processing()
	time.Sleep(2 * time.Millisecond)
	if r.mean() != 0 {
		t.Error("measured before its end")
	}
	done()
	done()
	if r.done != 1 || r.total < 2*time.Millisecond {
		t.Errorf("%d messages in %v", r.done, r.total)
	}
}

func TestFirstMeanAndChangesByHalfAreReportedEarly(t *testing.T) {
	r := newReporter(Options{})
	steps := []struct {
		microseconds []int
		isEarly      bool
	}{
		{nil, false},
		{[]int{1000}, true},
		{[]int{1499, 1000, 700}, false},
		{[]int{1600}, true},
		{[]int{1100, 1500}, false},
		{[]int{866}, true},
		{nil, false},
		{[]int{866, 900}, false},
	}
	for number, step := range steps {
		for _, microseconds := range step.microseconds {
			r.finish(time.Duration(microseconds) * time.Microsecond)
		}
		if r.needsEarly() != step.isEarly {
			t.Errorf("step %d", number)
		}
		r.take()
	}
	r.connected(&packets.Connack{})
	r.finish(883 * time.Microsecond)
	if !r.needsEarly() {
		t.Error("the first on a connection")
	}
}

func TestQueueAboveTwiceTheReportedOneIsReportedEarly(t *testing.T) {
	r := newReporter(Options{})
	for _, length := range []int{4, 12, 28} {
		r.Queue(length - 1)
		if r.needsEarly() {
			t.Errorf("at %d", length-1)
		}
		r.Queue(length)
		if !r.needsEarly() {
			t.Errorf("not at %d", length)
		}
		r.take()
	}
}

func TestWithRegularReportsOnlyDrainingIsReportedEarly(t *testing.T) {
	r := newReporter(Options{RegularOnly: true})
	r.Queue(100)
	r.finish(time.Second)
	if r.needsEarly() {
		t.Error("early")
	}
	r.Drain()
	if !r.needsEarly() {
		t.Error("draining is told at once")
	}
	r.take()
	r.Drain()
	if r.needsEarly() {
		t.Error("it was told")
	}
	r.connected(&packets.Connack{})
	if !r.needsEarly() {
		t.Error("the next connection is told, too")
	}
	r.take()
	r.Resume()
	expectReport(t, r, `{"msgsInQueue":100,"processingTimePerMsg":0}`)
}

func TestBrokerAndForceChooseTheCarrier(t *testing.T) {
	cases := []struct {
		offered string
		force   bool
		chosen  carrier
	}{
		{"pingreq,ack,publish", false, pingreq},
		{"publish, pingreq", false, pingreq},
		{"ack,publish", false, publish},
		{"ack", false, none},
		{"ack", true, publish},
		{"", false, none},
		{"", true, publish},
		{"smoke", false, none},
	}
	for _, c := range cases {
		connack := &packets.Connack{Properties: &packets.Properties{}}
		if c.offered != "" {
			connack.Properties.User = []packets.User{{Key: property, Value: c.offered}}
		}
		if got := chosen(connack, c.force); got != c.chosen {
			t.Errorf("%q, force %v: %v", c.offered, c.force, got)
		}
	}
}

func TestReportsKeepGapAndRhythm(t *testing.T) {
	begun := time.Now()
	at := func(milliseconds int) time.Time { return begun.Add(time.Duration(milliseconds) * time.Millisecond) }
	s := newSchedule(time.Second, begun)
	steps := []struct {
		milliseconds int
		early        bool
		isTurn       bool
		next         int
	}{
		{99, true, false, 1000},
		{999, false, false, 1000},
		{1010, false, true, 2000},
		{1109, true, false, 2000},
		{1110, true, true, 2110},
		{30000, false, true, 31000},
		{30001, false, false, 31000},
	}
	for _, step := range steps {
		if got := s.turn(step.early, at(step.milliseconds)); got != step.isTurn || !s.next.Equal(at(step.next)) {
			t.Errorf("%+v: %v, next in %v", step, got, s.next.Sub(begun))
		}
	}
}

func TestIntervalHasDefaultAndMinimum(t *testing.T) {
	for given, expected := range map[time.Duration]time.Duration{
		0: time.Second, -1: time.Second, 1: time.Millisecond, time.Minute: time.Minute,
	} {
		if got := newReporter(Options{Interval: given}).options.Interval; got != expected {
			t.Errorf("%v: %v", given, got)
		}
	}
}
