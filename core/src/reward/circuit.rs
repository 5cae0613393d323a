//! The circuit breaker of one service: closed, open, and half open with one probe.

use super::config::Circuit;
use crate::time::Time;

/// State of a breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Breaker {
    /// Calls are made; so many faults came in a row.
    Closed { faults: u32 },
    /// No calls until then; it has opened so many times in a row.
    Open { until: Time, times: u32 },
    /// One call finds out.
    HalfOpen { probing: bool, times: u32 },
}

impl Breaker {
    pub(super) const fn new() -> Self {
        Self::Closed { faults: 0 }
    }

    pub(super) const fn is_open(&self) -> bool {
        !matches!(self, Self::Closed { .. })
    }

    /// When a probe is allowed.
    pub(super) const fn until(&self) -> Option<Time> {
        match self {
            Self::Open { until, .. } => Some(*until),
            _ => None,
        }
    }

    /// Whether a call may be made now.
    pub(super) fn allows(&mut self, now: Time) -> bool {
        if let Self::Open { until, times } = *self
            && until <= now
        {
            *self = Self::HalfOpen { probing: false, times };
        }
        matches!(self, Self::Closed { .. } | Self::HalfOpen { probing: false, .. })
    }

    /// A call is made; whether it is the probe.
    pub(super) const fn called(&mut self) -> bool {
        if let Self::HalfOpen { probing, .. } = self {
            *probing = true;
            return true;
        }
        false
    }

    /// The service has answered; whether that closes the circuit.
    pub(super) const fn answered(&mut self) -> bool {
        let was_open = self.is_open();
        *self = Self::Closed { faults: 0 };
        was_open
    }

    /// A call has failed; whether that opens a closed circuit. What was called before it
    /// opened says nothing new.
    pub(super) fn failed(&mut self, probe: bool, config: &Circuit, now: Time) -> bool {
        let times = match self {
            Self::Closed { faults } => {
                *faults += 1;
                if *faults < config.faults {
                    return false;
                }
                1
            }
            Self::HalfOpen { times, .. } if probe => times.saturating_add(1),
            Self::HalfOpen { .. } | Self::Open { .. } => return false,
        };
        *self = Self::Open { until: now + config.open.after(times), times };
        times == 1
    }

    /// The call says nothing about the service.
    pub(super) const fn no_news(&mut self, probe: bool) {
        if let Self::HalfOpen { probing, .. } = self
            && probe
        {
            *probing = false;
        }
    }
}
