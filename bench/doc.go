// Package bench measures herdgate beside what a service would have without it, and
// counts the commands that each path sends. It holds tests and benchmarks only;
// README.md tells how to run them and what they gave.
package bench
