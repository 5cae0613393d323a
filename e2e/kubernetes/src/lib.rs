//! A real Kubernetes on this machine, for end-to-end tests.
#![forbid(unsafe_code)]
