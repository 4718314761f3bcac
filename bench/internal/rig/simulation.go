package rig

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"testing/synctest"

	"github.com/herdgate/herdgate/internal/child"
)

// simulationEnv tells this program, run again, what it is to simulate.
const simulationEnv = "HERDGATE_BENCH_SIMULATION"

// Simulation runs in virtual time: t belongs to a testing/synctest bubble.
type Simulation func(t *testing.T, args json.RawMessage) any

// Simulated makes a Simulation of a func with arguments of its own type.
func Simulated[A, R any](f func(t *testing.T, args A) R) Simulation {
	return func(t *testing.T, raw json.RawMessage) any {
		t.Helper()
		var args A
		if err := json.Unmarshal(raw, &args); err != nil {
			t.Fatal(err)
		}
		return f(t, args)
	}
}

// simulationRequest is the content of simulationEnv.
type simulationRequest struct {
	Name string
	Args json.RawMessage
}

// resultMark begins the line with the result: the testing package prints others.
const resultMark = "simulated: "

// IsSimulation reports whether this process was started by Simulate and has to call
// ServeSimulation.
func IsSimulation() bool { return os.Getenv(simulationEnv) != "" }

// ServeSimulation simulates, prints the result and ends the process. Only the testing
// package can open a bubble, and its Main runs tests from a program.
func ServeSimulation(named map[string]Simulation) {
	os.Args = os.Args[:1] // flags of this process are none of the testing package's
	simulate := func(t *testing.T) {
		t.Helper()
		var r simulationRequest
		if err := json.Unmarshal([]byte(os.Getenv(simulationEnv)), &r); err != nil {
			t.Fatal(err)
		}
		simulation, ok := named[r.Name]
		if !ok {
			t.Fatalf("no simulation %q", r.Name)
		}
		var result any
		synctest.Test(t, func(t *testing.T) { result = simulation(t, r.Args) })
		encoded, err := json.Marshal(result)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("\n%s%s\n", resultMark, encoded)
	}
	testing.Main(func(string, string) (bool, error) { return true, nil }, []testing.InternalTest{{Name: "simulation", F: simulate}}, nil, nil)
}

// Simulate runs a simulation in a process of its own.
func Simulate[R any](ctx context.Context, name string, args any) (result R, err error) {
	encodedArgs, err := json.Marshal(args)
	if err != nil {
		return result, err
	}
	request, err := json.Marshal(simulationRequest{Name: name, Args: encodedArgs})
	if err != nil {
		return result, err
	}
	exe, err := os.Executable()
	if err != nil {
		return result, err
	}
	cmd := exec.CommandContext(ctx, exe)
	cmd.Env = append(os.Environ(), simulationEnv+"="+string(request))
	cmd.SysProcAttr = child.DieWithParent()
	out, runErr := cmd.CombinedOutput()
	for line := range bytes.Lines(out) {
		if encoded, ok := bytes.CutPrefix(line, []byte(resultMark)); ok && runErr == nil {
			return result, json.Unmarshal(encoded, &result)
		}
	}
	if ctx.Err() != nil {
		runErr = context.Cause(ctx)
	}
	return result, fmt.Errorf("the simulation of %s gave no result: %w\n%s", name, runErr, out[max(0, len(out)-4096):])
}
