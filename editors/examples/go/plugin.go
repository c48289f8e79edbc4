// A plugin whose editor is a terminal: plugin HOST:PORT. docs/plugin.md explains it.
//
// Input lines: "type TEXT" (TEXT is now the document up to the cursor), "accept" and "dismiss".
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"strings"
	"time"
	"unicode/utf16"

	pb "example.com/plugin/completion/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const firstBound, lastBound = 100 * time.Millisecond, 5 * time.Second

// refusedWait is for a token that was refused: it is refused again.
const refusedWait = 15 * time.Second

// streamEvent is what a stream's reader tells the main loop: exactly one of the three.
type streamEvent struct {
	connected bool
	response  *pb.SessionResponse
	ended     error
}

// plugin belongs to the goroutine of main, which needs no lock then.
type plugin struct {
	client     pb.CompletionServiceClient
	call       pb.CompletionService_SessionClient
	events     chan streamEvent
	reconnect  <-chan time.Time
	isAway     bool // from a loss until the server has accepted another stream
	bound      time.Duration
	sessionID  string
	sequence   uint64
	request    *pb.CompleteRequest // the newest, until its end
	text       string
	quietUntil time.Time
}

func main() {
	conn, err := grpc.Dial(os.Args[1], grpc.WithInsecure(),
		// gRPC's own back-off grows to 2 minutes otherwise.
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: 5 * time.Second,
			Backoff: backoff.Config{BaseDelay: firstBound, Multiplier: 2, Jitter: 0.2, MaxDelay: time.Second}}),
		// Notices a connection that broke without a word.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second}))
	if err != nil {
		panic(err)
	}
	rand.Seed(time.Now().UnixNano())
	lines := make(chan string)
	go func() {
		defer close(lines)
		for input := bufio.NewScanner(os.Stdin); input.Scan(); {
			lines <- input.Text()
		}
	}()
	p := &plugin{client: pb.NewCompletionServiceClient(conn), events: make(chan streamEvent), bound: firstBound,
		isAway: true, sessionID: fmt.Sprintf("%016x", rand.Uint64())}
	p.connect()
	for {
		select {
		case line, more := <-lines:
			if !more {
				return
			}
			p.command(line)
		case event := <-p.events:
			p.handle(event)
		case <-p.reconnect:
			p.connect()
		}
	}
}

func (p *plugin) command(line string) {
	switch command, rest, _ := strings.Cut(line, " "); command {
	case "type":
		p.typed(rest)
	case "accept":
		if p.text != "" && p.request == nil { // the user sees a whole answer
			fmt.Println("accepted", quoted(p.text))
			p.report(pb.FeedbackKind_FEEDBACK_KIND_ACCEPTED, len(utf16.Encode([]rune(p.text))))
			p.text = ""
		}
	case "dismiss":
		if p.request != nil {
			p.send(&pb.SessionRequest{Event: &pb.SessionRequest_Cancel{Cancel: &pb.Cancel{Sequence: p.sequence}}})
		} else if p.text != "" {
			p.report(pb.FeedbackKind_FEEDBACK_KIND_REJECTED, 0)
		}
		p.request = nil
		p.hide()
	}
}

// typed asks anew, which supersedes the older request. docs/client-policy.md tells when to ask at all.
func (p *plugin) typed(prefix string) {
	p.hide()
	if p.isAway {
		fmt.Println("away")
		return
	}
	if time.Now().Before(p.quietUntil) {
		fmt.Println("quiet")
		return
	}
	p.sequence++
	timeoutMs := uint32(10_000)
	p.request = &pb.CompleteRequest{SessionId: p.sessionID, Sequence: p.sequence, TimeoutMs: &timeoutMs,
		DocumentUri: "file:///a.py", LanguageId: "python", Prefix: prefix}
	p.send(&pb.SessionRequest{Event: &pb.SessionRequest_Complete{Complete: p.request}})
}

func (p *plugin) report(kind pb.FeedbackKind, characters int) {
	feedback := &pb.ReportFeedbackRequest{Sequence: p.sequence, Kind: kind, AcceptedCharacters: uint32(characters)}
	p.send(&pb.SessionRequest{Event: &pb.SessionRequest_Feedback{Feedback: feedback}})
}

func (p *plugin) send(message *pb.SessionRequest) {
	if p.call == nil {
		p.connect()
	}
	if p.call != nil {
		_ = p.call.Send(message) // fails if the stream has ended; its reader tells why
	}
}

// connect opens a stream and starts its reader. Only one reader runs at a time.
func (p *plugin) connect() {
	p.reconnect = nil
	ctx := metadata.AppendToOutgoingContext(context.Background(), "x-user-id", "ada")
	if token := os.Getenv("COMPLETION_TOKEN"); token != "" { // send it only over TLS, or to this machine
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	call, err := p.client.Session(ctx)
	if err != nil {
		p.end(err)
		return
	}
	p.call = call
	go func() {
		if _, err := call.Header(); err == nil {
			p.events <- streamEvent{connected: true}
		}
		for {
			response, err := call.Recv()
			if err != nil {
				p.events <- streamEvent{ended: err}
				return
			}
			p.events <- streamEvent{response: response}
		}
	}()
}

func (p *plugin) handle(event streamEvent) {
	switch {
	case event.connected:
		p.isAway = false
		fmt.Println("connected")
	case event.ended != nil:
		p.end(event.ended)
	default:
		p.bound = firstBound
		p.receive(event.response)
	}
}

func (p *plugin) end(err error) {
	reason, wait := "-", time.Duration(0)
	for _, detail := range status.Convert(err).Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			reason = detail.GetReason()
		case *errdetails.RetryInfo:
			delay := detail.GetRetryDelay()
			wait = time.Duration(delay.GetSeconds())*time.Second + time.Duration(delay.GetNanos())
		}
	}
	p.call = nil
	if reason == "SESSION_ENDED" {
		fmt.Println("rest")   // the next message opens another stream
		if p.request != nil { // the server has not read it
			p.send(&pb.SessionRequest{Event: &pb.SessionRequest_Complete{Complete: p.request}})
		}
		return
	}
	p.isAway = true
	p.hide()
	p.request = nil // an answer that comes after the reconnect is too late
	if status.Code(err) == codes.Unauthenticated {
		fmt.Println("token", status.Convert(err).Message())
		if wait < refusedWait { // tell the user, and do not ask in a loop
			wait = refusedWait
		}
	}
	wait += time.Duration(rand.Int63n(int64(p.bound)))
	if p.bound *= 2; p.bound > lastBound {
		p.bound = lastBound
	}
	fmt.Println("lost", reason, wait.Milliseconds())
	p.reconnect = time.After(wait)
}

func (p *plugin) receive(response *pb.SessionResponse) {
	number := response.Sequence
	isNewest := p.request != nil && number == p.sequence
	switch event := response.Event.(type) {
	case *pb.SessionResponse_Refusal:
		fmt.Println("refused", event.Refusal.Error.Message)
	case *pb.SessionResponse_Delta:
		if isNewest {
			p.show(event.Delta.Text)
		}
	case *pb.SessionResponse_End:
		end := event.End
		if end.RetryAfterMs != nil {
			p.quietUntil = time.Now().Add(time.Duration(*end.RetryAfterMs) * time.Millisecond)
		}
		if isNewest {
			p.finish(end)
		}
		if end.Error != nil {
			fmt.Println("error", end.Error.Message)
		}
		fmt.Println("end", number, strings.TrimPrefix(end.FinishReason.String(), "FINISH_REASON_"))
	}
}

func (p *plugin) finish(end *pb.End) {
	p.request = nil
	isWhole := end.FinishReason == pb.FinishReason_FINISH_REASON_STOP ||
		end.FinishReason == pb.FinishReason_FINISH_REASON_LENGTH
	if !isWhole || strings.TrimSpace(p.text+end.Text) == "" {
		p.hide()
		return
	}
	p.show(end.Text)
	p.report(pb.FeedbackKind_FEEDBACK_KIND_SHOWN, 0)
}

func (p *plugin) show(more string) {
	p.text += more
	if more != "" && strings.TrimSpace(p.text) != "" {
		fmt.Println("show", p.sequence, quoted(p.text))
	}
}

func (p *plugin) hide() {
	if p.text != "" {
		fmt.Println("hide")
	}
	p.text = ""
}

func quoted(text string) string {
	written, _ := json.Marshal(text)
	return string(written)
}
