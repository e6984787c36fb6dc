// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

// Package certs is how processes of Segue know each other: mutual TLS from files that may be exchanged at any time.
//
// A Bundle holds one certificate with its key and the certificate authorities whose peers are believed. Every
// handshake, in both directions, uses the files as they are: Server and Client return configurations that ask the
// Bundle each time. Established connections live on through a rotation, also beyond the end of their certificates;
// who wants them gone closes them. Files that can't be used leave the ones before in force, and are reported.
//
// Peers are verified by VerifyConnection against the authorities in force at that moment, and not by the RootCAs and
// ClientCAs of crypto/tls, which are fixed when a configuration is made. Sessions aren't resumed, so that no peer
// passes on the word of an authority that is gone.
//
// To replace an authority, first add the new one to the ca files of all processes, then exchange the certificates,
// then take the old one out of the ca files.
//
// Who may connect is decided by a server's list of names, compared with the DNS and URI names (SAN) of the client's
// certificate, byte for byte. Common names count for nothing.
//
// Authority makes certificates for tests and first steps. Its key lies in a file: it is no way to run a real one.
package certs
