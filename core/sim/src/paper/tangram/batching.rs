//! A simulator of a static deployment with continuous batching, as `SGLang` serves: a
//! replica works on all its requests at once.

/// A request to a replica of its own model.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    /// Seconds after the batch began.
    pub(super) arrival: f64,
    /// Seconds that it takes alone.
    pub(super) work: f64,
}

/// How much more a replica does with two and more requests than with one.
pub(super) const GAIN: f64 = 1.2;

/// Completion time of each request, in order of completion. The replica shares its rate,
/// 1 for one request and [`GAIN`] for several, equally between at most `most` of them;
/// the rest wait, first come first served.
pub(super) fn completion_times(mut requests: Vec<Request>, most: usize) -> Vec<f64> {
    requests.sort_by(|a, b| a.arrival.total_cmp(&b.arrival));
    let mut waiting = requests.into_iter().peekable();
    // By what is left to do, the least last.
    let mut running: Vec<(f64, f64)> = Vec::new();
    let (mut now, mut times) = (0.0_f64, Vec::new());
    loop {
        while running.len() < most
            && let Some(request) = waiting.next_if(|request| request.arrival <= now)
        {
            let place = running.partition_point(|&(left, _)| left >= request.work);
            running.insert(place, (request.work, request.arrival));
        }
        let rate = if running.len() > 1 { GAIN } else { 1.0 } / running.len().max(1) as f64;
        let end = running.last().map(|&(left, _)| now + left / rate);
        let next = waiting.peek().filter(|_| running.len() < most).map(|request| request.arrival);
        let until = match (end, next) {
            (Some(end), Some(next)) => end.min(next),
            (Some(end), None) => end,
            (None, Some(next)) => next,
            (None, None) => return times,
        };
        for (left, _) in &mut running {
            *left -= (until - now) * rate;
        }
        now = until;
        if end.is_some_and(|end| end <= now)
            && let Some((_, arrival)) = running.pop()
        {
            times.push(now - arrival);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_requests_share_a_replica_and_a_third_waits() {
        let request = |arrival, work| Request { arrival, work };
        // Together from 0: 1.2 s of work a second, so the first ends at 2 / 1.2 s.
        let times = completion_times(vec![request(0.0, 1.0), request(0.0, 2.0)], 2);
        let first = 2.0 / 1.2;
        assert!((times[0] - first).abs() < 1e-9, "{times:?}");
        // What is left of the second, 1 s, runs alone.
        assert!((times[1] - (first + 1.0)).abs() < 1e-9, "{times:?}");
        let alone = completion_times(vec![request(0.0, 1.0), request(0.0, 2.0)], 1);
        assert_eq!(alone, [1.0, 3.0]);
        assert_eq!(completion_times(vec![request(5.0, 1.0)], 8), [1.0]);
    }
}
