//! Brute force, and the bounds that the policy promises.

use super::*;
use crate::elastic::decide::LAST_END;
use crate::elastic::together::together;

/// The least sum of durations with all of them started.
fn brute_force(works: &[&Work], free: u32) -> Option<f64> {
    let Some((first, rest)) = works.split_first() else { return Some(0.0) };
    let sums = first.choices().iter().filter_map(|choice| {
        Some(choice.seconds + brute_force(rest, free.checked_sub(choice.units.ceil())?)?)
    });
    sums.reduce(f64::min)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Everything starts, within the cores, with units of its own; the same each time.
    #[test]
    fn every_line_is_served(cores in 8..40_u32, jobs in jobs(7, 40, 200.0)) {
        let played = elastic(cores, &jobs);
        prop_assert_eq!(played.starts.len(), jobs.len());
    }

    /// Nothing starves: past its rank an action is passed only where it does not fit.
    #[test]
    fn nobody_is_passed_beyond_its_rank(cores in 8..16_u32, jobs in jobs(7, 60, 60.0)) {
        let rank = |job: usize| jobs[job].work.rank(jobs[job].submitted);
        for started in elastic(cores, &jobs).starts {
            for &passed in &started.passed {
                let late = rank(passed) < started.at && rank(passed) < rank(started.job);
                prop_assert!(!late || started.blocked, "{passed} passed by {}", started.job);
            }
        }
    }

    /// On a batch, where nothing is unforeseen, no fixed degree is better in what is weighed:
    /// completion times and the end. Fixed degrees serve the line as it came, ours by rank.
    #[test]
    fn a_batch_is_no_worse_than_the_best_fixed_degree(
        cores in 8..33_u32,
        jobs in jobs(4, 24, 0.0),
    ) {
        let cost = |played: &Played| {
            let last = played.ends.iter().max().unwrap().since(Time::ZERO).as_secs_f64();
            played.flow(&jobs) + LAST_END * jobs.len() as f64 * last
        };
        let ours = cost(&elastic(cores, &jobs));
        for limit in [1, 2, 4, 8] {
            let theirs = cost(&fixed(cores, &jobs, limit));
            prop_assert!(ours <= 1.02 * theirs + 1e-6, "{ours} s, fixed:{limit} {theirs} s");
        }
    }

    /// A handful of equal actions at once on two cores, as test suites come to a laptop: the mean
    /// is no worse than under the better of one and two cores for all, but for what the last end
    /// weighs.
    #[test]
    fn on_two_cores_no_fixed_degree_is_better(
        count in 1..9_usize,
        seconds in 0.1..100.0_f64,
        serial in 0.0..=1.0_f64,
    ) {
        let job = Job {
            submitted: Time::ZERO,
            work: work(&[1.0, 2.0], seconds, serial),
            malleable: false,
        };
        let jobs = vec![job; count];
        let ours = elastic(2, &jobs).flow(&jobs);
        let theirs = [1, 2].map(|limit| fixed(2, &jobs, limit).flow(&jobs));
        prop_assert!(ours <= 1.02 * theirs[0].min(theirs[1]) + 1e-6, "{ours} s, fixed {theirs:?}");
    }

    /// What can be resized is, within the cores; nothing starts before its turn.
    #[test]
    fn malleable_actions_share_the_cores(cores in 8..33_u32, jobs in jobs(5, 30, 100.0)) {
        let jobs: Vec<Job> =
            jobs.into_iter().map(|job| Job { malleable: true, ..job }).collect();
        let rank = |job: usize| jobs[job].work.rank(jobs[job].submitted);
        let played = elastic(cores, &jobs);
        prop_assert_eq!(played.starts.len(), jobs.len());
        for started in &played.starts {
            let passed = started.passed.iter().filter(|&&job| rank(job) < rank(started.job));
            prop_assert_eq!(passed.count(), 0);
        }
    }

    #[test]
    fn together_is_exact(works in prop::collection::vec(works(3), 1..5), free in 1..12_u32) {
        let waiting: Vec<Waiting> = works
            .iter()
            .map(|work| Waiting { work, submitted: Time::ZERO, resizable: false })
            .collect();
        let line = Line {
            now: Time::ZERO,
            cores: free,
            running: &[],
            waiting: &waiting,
            beyond: 0,
            idle_trajectories: 0,
        };
        let units = together(&line, Room::of(&line));
        let best = brute_force(&works[..units.len()].iter().collect::<Vec<_>>(), free).unwrap();
        let got: f64 = units.iter().zip(&works).map(|(units, work)| {
            work.choices().iter().find(|choice| choice.units == *units).unwrap().seconds
        }).sum();
        prop_assert!((best - got).abs() < 1e-6, "{got} s, the best is {best} s");
        let one_more: Vec<&Work> = works.iter().take(units.len() + 1).collect();
        prop_assert!(one_more.len() == units.len() || brute_force(&one_more, free).is_none());
    }

    /// Tangram starts a prefix of its line, within the cores, and always ends.
    #[test]
    fn tangram_serves_prefixes(
        cores in 8..40_u32,
        jobs in jobs(7, 40, 200.0),
        depth in prop_oneof![Just(None), (1..4_usize).prop_map(Some)],
    ) {
        let played = play(cores, &jobs, |line, _| {
            // Its line is in the order of submission.
            let mut order: Vec<usize> = (0..line.waiting.len()).collect();
            order.sort_by_key(|&index| line.waiting[index].submitted);
            let waiting: Vec<Waiting> = order.iter().map(|&index| line.waiting[index]).collect();
            let starts = tangram(&Line { waiting: &waiting, ..*line }, depth);
            assert!(starts.iter().enumerate().all(|(place, given)| given.index == place));
            let starts = starts.into_iter().map(|g| Given { index: order[g.index], ..g });
            Decision { resizes: Vec::new(), starts: starts.collect() }
        });
        prop_assert_eq!(played.starts.len(), jobs.len());
    }
}
