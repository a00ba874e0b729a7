package engine

import (
	"context"

	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"
)

// Events implements Engine.
func (d Docker) Events(ctx context.Context) (<-chan Event, <-chan error) {
	messages, failed := d.client.Events(ctx, events.ListOptions{Filters: filters.NewArgs(
		filters.Arg("type", string(events.ContainerEventType)),
		filters.Arg("type", string(events.ImageEventType)),
		filters.Arg("type", string(events.NetworkEventType)),
	)})
	translated, ended := make(chan Event), make(chan error, 1)
	go func() {
		for {
			select {
			case m := <-messages:
				event, matters := translate(m)
				if !matters {
					continue
				}
				select {
				case translated <- event:
				case <-ctx.Done():
				}
			case err := <-failed:
				ended <- err
				return
			}
		}
	}()
	return translated, ended
}

// translate returns the Event that a message of Docker's is about, if it is about any.
func translate(m events.Message) (event Event, matters bool) {
	event = Event{Container: m.Actor.ID, Labels: m.Actor.Attributes}
	switch {
	case m.Type == events.ImageEventType:
		return Event{Kind: ImagesChanged}, true
	case m.Type == events.NetworkEventType && m.Action == events.ActionDisconnect:
		return Event{Kind: Disconnected, Container: m.Actor.Attributes["container"]}, true
	case m.Type != events.ContainerEventType:
		return Event{}, false
	case m.Action == events.ActionDie:
		event.Kind = Ended
	case m.Action == events.ActionDestroy:
		event.Kind = Removed
	case m.Action == events.ActionUnPause:
		event.Kind = Resumed
	}
	return event, event.Kind != 0
}
