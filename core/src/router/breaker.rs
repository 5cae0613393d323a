//! Circuit breaker of one worker: closed, open with a time that doubles, half-open
//! with one probe.

use std::time::Duration;

use super::config;
use crate::time::Time;
use crate::version::RequestId;

/// Doublings after which the time has certainly reached any sensible maximum.
const MAX_DOUBLINGS: u32 = 30;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Breaker {
    /// Takes requests; so many have failed in a row.
    Closed { failures: u32 },
    /// Takes none until then; opened so many times in a row.
    Open { until: Time, times: u32 },
    /// Takes one, the probe.
    HalfOpen { probe: Option<RequestId>, times: u32 },
}

impl Breaker {
    pub(super) const fn new() -> Self {
        Self::Closed { failures: 0 }
    }

    pub(super) fn is_open(self) -> bool {
        matches!(self, Self::Open { .. })
    }

    pub(super) fn probing(self) -> bool {
        matches!(self, Self::HalfOpen { .. })
    }

    /// Whether one more request may be sent.
    pub(super) fn admits(self) -> bool {
        matches!(self, Self::Closed { .. } | Self::HalfOpen { probe: None, .. })
    }

    pub(super) fn sent(&mut self, request: RequestId) {
        if let Self::HalfOpen { probe, .. } = self {
            *probe = Some(request);
        }
    }

    /// Time has passed; whether it is half-open by that.
    pub(super) fn tick(&mut self, now: Time) -> bool {
        match *self {
            Self::Open { until, times } if until <= now => {
                *self = Self::HalfOpen { probe: None, times };
                true
            }
            _ => false,
        }
    }

    pub(super) fn succeeded(&mut self, request: RequestId) {
        match self {
            Self::Closed { failures } => *failures = 0,
            Self::HalfOpen { probe: Some(probe), .. } if *probe == request => *self = Self::new(),
            // What was sent before it opened proves nothing of the worker of now.
            Self::Open { .. } | Self::HalfOpen { .. } => {}
        }
    }

    /// A request has failed by the worker's fault. Until when it is open by that.
    pub(super) fn failed(
        &mut self,
        request: RequestId,
        rule: &config::Breaker,
        now: Time,
    ) -> Option<Time> {
        let times = match self {
            Self::Closed { failures } => {
                *failures += 1;
                if *failures < rule.failures {
                    return None;
                }
                1
            }
            Self::HalfOpen { probe: Some(probe), times } if *probe == request => *times + 1,
            Self::Open { .. } | Self::HalfOpen { .. } => return None,
        };
        let until = now + open_for(rule, times);
        *self = Self::Open { until, times };
        Some(until)
    }

    /// A request has ended in a way that says nothing of the worker.
    pub(super) fn inconclusive(&mut self, request: RequestId) {
        if let Self::HalfOpen { probe, .. } = self
            && *probe == Some(request)
        {
            *probe = None;
        }
    }
}

fn open_for(rule: &config::Breaker, times: u32) -> Duration {
    let doublings = times.saturating_sub(1).min(MAX_DOUBLINGS);
    rule.base.saturating_mul(1 << doublings).min(rule.max)
}
