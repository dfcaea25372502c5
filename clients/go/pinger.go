package tenbin

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
)

// pinger sends load reports, and leaves pings without reports to the pinger that it wraps.
type pinger struct {
	paho.Pinger
	reporter *LoadReporter

	mu sync.Mutex
	// unanswered is the time of the oldest ping without an answer; zero if there is none.
	unanswered time.Time
}

// Run sends reports until the connection ends.
func (p *pinger) Run(ctx context.Context, conn net.Conn, keepAlive uint16) error {
	p.reporter.mu.Lock()
	carrier := p.reporter.carrier
	p.reporter.mu.Unlock()
	limit := time.Duration(keepAlive) * time.Second
	switch carrier {
	case pingreq:
		interval := p.reporter.options.Interval
		if limit > 0 {
			interval = min(interval, limit)
		}
		p.answered()
		return p.report(ctx, conn, interval, limit, nil)
	case publish:
		ctx, cancel := context.WithCancel(ctx)
		ended := make(chan error, 1)
		var inner sync.WaitGroup
		inner.Add(1)
		go func() {
			defer inner.Done()
			// Without Keep Alive it ends at once.
			ended <- p.Pinger.Run(ctx, conn, keepAlive)
		}()
		defer inner.Wait()
		defer cancel()
		return p.report(ctx, conn, p.reporter.options.Interval, 0, ended)
	default:
		return p.Pinger.Run(ctx, conn, keepAlive)
	}
}

// PacketReceived looks for an early report, and tells the wrapped pinger.
func (p *pinger) PacketReceived() {
	p.reporter.packetReceived()
	p.Pinger.PacketReceived()
}

// PingResp notes the answer of a ping, and tells the wrapped pinger.
func (p *pinger) PingResp() {
	p.answered()
	p.Pinger.PingResp()
}

// report sends reports until ctx is done, or until an error. A limit above 0 makes them pings, whose answers are due
// within the limit or, without Keep Alive, at any time; ended has the end of another pinger.
func (p *pinger) report(ctx context.Context, conn net.Conn, interval, limit time.Duration, ended chan error) error {
	isPing := ended == nil
	timing := newSchedule(interval, time.Now())
	written := make(chan error, 1)
	isWriting := false
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		due := timing.due(p.reporter.needsEarly())
		if answer := p.answerDue(limit); !answer.IsZero() && answer.Before(due) {
			due = answer
		}
		timer.Reset(time.Until(due))
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			if err != nil {
				return err
			}
			ended = nil
		case err := <-written:
			if err != nil {
				return err
			}
			isWriting = false
		case <-p.reporter.news:
		case <-timer.C:
		}
		now := time.Now()
		if answer := p.answerDue(limit); !answer.IsZero() && !now.Before(answer) {
			return errors.New("PINGRESP timed out")
		}
		// While the socket is full a report would be stale when it leaves. Its counts go into the next one.
		if !timing.turn(p.reporter.needsEarly(), now) || isWriting {
			continue
		}
		packet := reportPacket(p.reporter.take(), isPing)
		if isPing {
			p.asked(now)
		}
		isWriting = true
		go func() {
			_, err := packet.WriteTo(conn)
			written <- err
		}()
	}
}

func (p *pinger) asked(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unanswered.IsZero() {
		p.unanswered = now
	}
}

func (p *pinger) answered() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unanswered = time.Time{}
}

// answerDue returns when the answer of a ping is due; zero if there is no limit, or no ping without an answer.
func (p *pinger) answerDue(limit time.Duration) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if limit == 0 || p.unanswered.IsZero() {
		return time.Time{}
	}
	return p.unanswered.Add(limit)
}

// reportPacket makes the packet of a report: an extended PINGREQ, or a PUBLISH.
func reportPacket(report []byte, isPing bool) *packets.ControlPacket {
	if isPing {
		return &packets.ControlPacket{
			FixedHeader: packets.FixedHeader{Type: packets.PINGREQ},
			Content:     &extendedPing{report: report},
		}
	}
	packet := packets.NewControlPacket(packets.PUBLISH)
	content := packet.Content.(*packets.Publish)
	content.Topic, content.Payload = "$load", report
	return packet
}

// extendedPing is a PINGREQ with an empty Property Length and a report as its payload.
type extendedPing struct {
	packets.Pingreq
	report []byte
}

// Buffers returns the body.
func (p *extendedPing) Buffers() net.Buffers { return net.Buffers{{0}, p.report} }

// schedule tells when reports are due: once an interval, and early after a large change.
type schedule struct {
	interval   time.Duration
	next, last time.Time
}

// newSchedule begins at CONNACK. The first report is due an interval later.
func newSchedule(interval time.Duration, now time.Time) schedule {
	return schedule{interval: interval, next: now.Add(interval), last: now}
}

func (s *schedule) due(early bool) time.Time {
	if soon := s.last.Add(eagerGap); early && soon.Before(s.next) {
		return soon
	}
	return s.next
}

// turn tells whether a report is due; if so, it sets the time of the next one.
func (s *schedule) turn(early bool, now time.Time) bool {
	if now.Before(s.due(early)) {
		return false
	}
	// Keeps the rhythm unless this report was early or late. Late reports cause no burst.
	inStep := s.next.Add(s.interval)
	if now.Before(s.next) || !inStep.After(now) {
		inStep = now.Add(s.interval)
	}
	s.next, s.last = inStep, now
	return true
}
