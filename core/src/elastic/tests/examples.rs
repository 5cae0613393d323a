//! Rules by examples computed by hand.

use super::*;

fn batch(count: usize, work: &Work) -> Vec<Job> {
    vec![Job { submitted: Time::ZERO, work: work.clone(), malleable: false }; count]
}

/// Waves of 8 cores are a little better in the mean and end a third later.
#[test]
fn of_two_plans_nearly_as_good_the_sooner_end_is_taken() {
    let jobs = batch(20, &work(&[1.0, 2.0, 4.0, 8.0], 120.0, 0.1));
    let played = elastic(128, &jobs);
    let eight = fixed(128, &jobs, 8);
    assert_eq!(played.ends.iter().max(), Some(&at(39.0)));
    assert_eq!(eight.ends.iter().max(), Some(&at(51.0)));
    assert!(played.flow(&jobs) < 1.01 * eight.flow(&jobs));
}

/// A line longer than the window starts all that fits, at once.
#[test]
fn a_window_ends_no_round() {
    let jobs = batch(3 * WINDOW + 5, &work(&[0.25, 2.0], 10.0, 1.0));
    let played = elastic(256, &jobs);
    assert!(played.starts.iter().all(|started| started.at == Time::ZERO));
}

/// A batch is no news of a second one; a stream is news of more of it.
#[test]
fn what_has_lasted_is_expected_to_last() {
    let one = work(&[1.0], 1.0, 0.0);
    let mut arrivals = Arrivals::default();
    for _ in 0..10 {
        arrivals.submitted(Time::ZERO, true, one.clone(), Demand::default(), 0);
    }
    assert!(arrivals.expected(at(5.0), 10).is_empty());
    for second in 1..=5 {
        arrivals.submitted(at(f64::from(second)), second > 3, one.clone(), Demand::default(), 0);
    }
    let after = |idle: usize| -> Vec<f64> {
        arrivals.expected(at(5.0), idle).iter().map(|expected| expected.after).collect()
    };
    assert_eq!(after(10), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]);
    // Only one trajectory is there to return, the others must open.
    assert_eq!(after(1), [1.0, 2.0, 5.0, 6.0, 7.0, 10.0]);
}

/// Many that are sent one by one are one batch.
#[test]
fn a_moment_announces_no_second_one() {
    let one = work(&[1.0], 1.0, 0.0);
    let mut arrivals = Arrivals::default();
    for at_seconds in [0.0, 10.0, 20.0, 20.001, 20.002] {
        arrivals.submitted(at(at_seconds), false, one.clone(), Demand::default(), 0);
    }
    let expected = arrivals.expected(at(20.01), 10);
    let first = expected.iter().map(|expected| expected.after).next();
    assert!(first.is_some_and(|first| (first - 10.01).abs() < 1e-6), "{first:?}");
}

/// What was not known before it ran is known when it is expected again.
#[test]
fn what_is_expected_again_lasts_as_long_as_it_did() {
    let unknown = work(&[1.0, 2.0], 10.0, 0.5);
    let mut arrivals = Arrivals::default();
    let numbers = [0.0, 1.0, 2.0]
        .map(|second| arrivals.submitted(at(second), false, unknown.clone(), Demand::default(), 0));
    assert_eq!(numbers, [0, 1, 2]);
    arrivals.lasted(numbers[1], Units::cores(2), 0.75);
    let expected = arrivals.expected(at(3.0), 10);
    let seconds: Vec<f64> = expected.iter().map(|e| e.work.least().seconds).collect();
    assert_eq!(seconds[..2], [10.0, 1.0]);
    assert_eq!(expected[1].work.rank(at(0.0)), at(1.0), "nor does it wait for longer");
    for _ in 0..100 {
        arrivals.submitted(at(4.0), false, unknown.clone(), Demand::default(), 0);
    }
    arrivals.lasted(numbers[2], Units::cores(1), 1.0);
    arrivals.lasted(u64::MAX, Units::cores(1), 1.0);
    let expected = arrivals.expected(at(5.0), 10);
    assert!(expected.iter().all(|e| e.work.least().seconds > 9.0), "it is forgotten");
}

/// One long action and short ones that would end after the first is due wait for it; the
/// short ones that end before do not.
#[test]
fn holes_are_filled_without_delay() {
    let four = work(&[4.0], 5.0, 1.0);
    let (short, long) = (work(&[1.0], 4.0, 1.0), work(&[1.0], 40.0, 1.0));
    let waiting =
        [&four, &long, &short].map(|work| Waiting { work, submitted: at(0.0), resizable: false });
    let running = [Running { ends: at(10.0), units: Units::cores(2), resizable: None }];
    let line = Line {
        now: at(5.0),
        cores: 4,
        running: &running,
        waiting: &waiting,
        beyond: 0,
        idle_trajectories: 0,
    };
    let decision = Elastic::default().decide(&line);
    assert_eq!(decision.starts, [Given { index: 2, units: Units::cores(1) }]);
}

/// What should have ended by now, or ends at once, holds its cores until it does.
#[test]
fn an_end_that_is_due_frees_nothing_yet() {
    let (none, some) = (work(&[1.0, 2.0], 0.0, 0.5), work(&[1.0, 2.0], 9.0, 0.5));
    let waiting = [&none, &some, &some, &some, &some].map(|work| Waiting {
        work,
        submitted: at(5.0),
        resizable: false,
    });
    let running = [Running { ends: at(1.0), units: Units::cores(2), resizable: None }];
    let line = Line {
        now: at(5.0),
        cores: 4,
        running: &running,
        waiting: &waiting,
        beyond: 0,
        idle_trajectories: 0,
    };
    let started = Elastic::default().decide(&line).starts;
    assert!(!started.is_empty());
    assert!(started.iter().map(|given| given.units.ceil()).sum::<u32>() <= 2);
}

/// Many that can be resized stand beside many that can not.
#[test]
fn a_long_malleable_line_fits() {
    let elastic_work = work(&[0.25, 1.0, 2.0], 10.0, 0.1);
    let mut jobs = batch(3 * WINDOW, &elastic_work);
    for (place, job) in jobs.iter_mut().enumerate() {
        job.malleable = place % 3 > 0;
        job.submitted = at(place as f64 / 100.0);
    }
    assert_eq!(elastic(64, &jobs).starts.len(), jobs.len());
}

#[test]
fn numbers_that_are_none_are_refused() {
    let units = UnitChoice::from_f64(&[1.0, 2.0]).unwrap();
    for bad in [-1.0, f64::NAN, f64::INFINITY] {
        assert!(matches!(Work::amdahl(&units, bad, 0.1), Err(InvalidWork::Duration { .. })));
    }
    for bad in [-0.1, 1.1, f64::NAN] {
        assert!(matches!(Work::amdahl(&units, 1.0, bad), Err(InvalidWork::Serial { .. })));
    }
}

#[test]
fn what_a_core_second_costs_later_ones_grows_with_the_line_and_the_load() {
    let one = Work::amdahl(&UnitChoice::from_f64(&[1.0, 2.0]).unwrap(), 4.0, 0.1).unwrap();
    // One each second, of four core-seconds.
    let price = |count: u32, found: usize, cores: u32| {
        let mut arrivals = Arrivals::default();
        for second in 0..count {
            let at = at(f64::from(second));
            arrivals.submitted(at, true, one.clone(), Demand::default(), found);
        }
        let expected = arrivals.expected(at(f64::from(count)), usize::MAX);
        arrivals.price_beyond(&expected, cores)
    };
    assert!(price(20, 3, 8) < 1e-9, "hardly anything has come yet");
    assert!(price(200, 0, 8) < 1e-9, "nobody waits");
    assert!((price(200, 4, 8) - 1.0).abs() < 1e-9, "half a second each, for twice as many");
    assert!(price(200, 8, 8) > price(200, 4, 8));
    assert!(price(200, 4, 5) > price(200, 4, 8));
    assert!(price(200, 4, 2).is_finite(), "more comes than can be done");
}
