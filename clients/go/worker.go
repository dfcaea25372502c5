package tenbin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/paho"
)

// Worker is a member of a share group that processes one message at a time, at QoS 1.
//
// It acknowledges a message after its processing, subscribes again after each reconnection, and reports its load.
type Worker struct {
	// Config is the client's. Its defaults here are a Keep Alive of 30 s, and pauses of 0.1 to 10 s between attempts to
	// connect.
	Config autopaho.ClientConfig
	// Group is the ShareName.
	Group string
	// Filter is the Topic Filter without $share.
	Filter string
	// Options of the load reports.
	Options Options
	// Subscribed is called after each subscription; nil for none.
	Subscribed func()
}

// Run processes messages until SIGTERM, SIGINT or the end of ctx. Then it drains: it takes no further messages,
// finishes and acknowledges the present ones, and disconnects. A second signal ends the process at once.
//
// A message for which process returns an error is rejected, with the [Rejection] in the error if there is one. It may
// then come again, or is dropped; see [LoadReporter.Reject].
//
// Messages of a lost connection that were not begun are left to the broker, which delivers them again.
//
// The error tells that the broker has refused the subscription, or that the configuration is wrong.
func (w Worker) Run(ctx context.Context, process func(*paho.Publish) error) error {
	if w.Group == "" || strings.ContainsAny(w.Group, "/+#") {
		return fmt.Errorf("%q is no ShareName: it is empty or has one of / + #", w.Group)
	}
	if w.Filter == "" {
		return errors.New("the Topic Filter of the worker is empty")
	}
	subscription := "$share/" + w.Group + "/" + w.Filter
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	failed := make(chan error, 1)
	config := w.Config
	// The client then acknowledges as soon as the handler returns, and not up to 50 ms later.
	config.EnableManualAcknowledgment = false
	if config.KeepAlive == 0 {
		config.KeepAlive = 30
	}
	if config.ReconnectBackoff == nil && config.ConnectRetryDelay == 0 {
		config.ReconnectBackoff = autopaho.NewExponentialBackoff(
			100*time.Millisecond, 10*time.Second, 200*time.Millisecond, 2)
	}
	reporter := NewAutoLoadReporter(&config, w.Options)
	config.OnPublishReceived = append(slices.Clip(config.OnPublishReceived), reporter.handler(process))
	onUp := config.OnConnectionUp
	config.OnConnectionUp = func(manager *autopaho.ConnectionManager, connack *paho.Connack) {
		if onUp != nil {
			onUp(manager, connack)
		}
		go func() {
			if err := w.subscribe(ctx, manager, subscription); err != nil {
				select {
				case failed <- err:
				default:
				}
			}
		}()
	}
	// The client outlives ctx, so that it can acknowledge the last messages.
	outliving := context.WithoutCancel(ctx)
	manager, err := autopaho.NewConnection(outliving, config)
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	stop()
	if config.SessionExpiryInterval > 0 {
		// The session keeps its subscription and the messages that come from now on.
		finished := reporter.session.finishing()
		reporter.Drain()
		<-finished
	} else {
		reporter.Drain()
		// Any broker understands this. Without a connection there is nothing to do.
		_, _ = manager.Unsubscribe(outliving, &paho.Unsubscribe{Topics: []string{subscription}})
		<-reporter.session.finishing()
	}
	return errors.Join(err, manager.Disconnect(outliving))
}

// subscribe fails if the broker refuses. A lost connection is no failure: the next one subscribes again.
func (w Worker) subscribe(ctx context.Context, manager *autopaho.ConnectionManager, subscription string) error {
	for ctx.Err() == nil {
		suback, err := manager.Subscribe(ctx, &paho.Subscribe{
			Subscriptions: []paho.SubscribeOptions{{Topic: subscription, QoS: 1}},
		})
		switch {
		case err == nil:
			if w.Subscribed != nil {
				w.Subscribed()
			}
			return nil
		case suback != nil:
			return fmt.Errorf("the broker refused %s with Reason Code 0x%02X", subscription, suback.Reasons[0])
		case errors.Is(err, paho.ErrInvalidArguments):
			return err
		case !errors.Is(err, context.DeadlineExceeded):
			return nil
		}
	}
	return nil
}

// handler processes messages one at a time, until the session is finished or its connection lost.
func (r *LoadReporter) handler(process func(*paho.Publish) error) func(paho.PublishReceived) (bool, error) {
	return func(received paho.PublishReceived) (bool, error) {
		if !r.session.begins() {
			return true, nil
		}
		done := r.Processing()
		err := process(received.Packet)
		done()
		if err == nil {
			return true, nil
		}
		var rejection Rejection
		errors.As(err, &rejection)
		// It fails if the connection is lost; then the message comes again.
		return true, errors.Join(err, r.Reject(received, rejection))
	}
}

// begins tells whether a message may be begun. If the session is finished, it waits for the connection's end, since the
// client acknowledges when the handler returns.
func (s *reportingSession) begins() bool {
	s.mu.Lock()
	lost, finished := s.lost, s.finished
	s.mu.Unlock()
	select {
	case <-finished:
		<-lost
		return false
	case <-lost:
		return false
	default:
		return true
	}
}
