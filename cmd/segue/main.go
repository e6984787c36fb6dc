// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Command segue is the router, the agent, the measuring tools and the controls of Segue, in one static
// binary. See "segue --help".
package main

import "os"

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }
