//! What is learned of a few actions whose durations vary.

use super::*;

fn key() -> ProfileKey {
    ProfileKey { job: JobId::new("j").unwrap(), profile: "p".into() }
}

fn learn(profiles: &mut Profiles, cores: u16, durations: &[f64]) {
    for seconds in durations {
        let (units, cpu_seconds) = (Units::cores(cores), Some(*seconds));
        profiles.learn(&key(), Sample { units, seconds: *seconds, cpu_seconds });
    }
}

fn most(profiles: &mut Profiles) -> Units {
    let units = UnitChoice::from_f64(&[1.0, 2.0]).unwrap();
    profiles.work(&key(), &units, Prior::default(), Prior::default()).unwrap().at_most(2).units
}

#[test]
fn what_may_be_faster_by_chance_is_not_taken_for_faster() {
    let mut noisy = Profiles::default();
    learn(&mut noisy, 1, &[1.5, 2.1, 1.3]);
    learn(&mut noisy, 2, &[1.3, 1.9, 1.5]);
    assert_eq!(most(&mut noisy), Units::cores(1));
    // The same means, often and steadily.
    let mut steady = Profiles::default();
    for _ in 0..30 {
        learn(&mut steady, 1, &[1.63]);
        learn(&mut steady, 2, &[1.5]);
    }
    assert_eq!(most(&mut steady), Units::cores(2));
    let mut clear = Profiles::default();
    learn(&mut clear, 1, &[1.5, 2.1, 1.3]);
    learn(&mut clear, 2, &[0.7, 1.1, 0.9]);
    assert_eq!(most(&mut clear), Units::cores(2));
}

#[test]
fn what_was_never_tried_is_tried() {
    let mut profiles = Profiles::default();
    learn(&mut profiles, 1, &[1.5, 2.1, 1.3, 1.6]);
    assert_eq!(most(&mut profiles), Units::cores(2));
}

#[test]
fn one_that_is_a_little_late_is_not_expected_with_the_rare_long_ones() {
    let mut profiles = Profiles::default();
    learn(&mut profiles, 1, &[3.8]);
    for n in 0..30 {
        learn(&mut profiles, 1, &[1.5 + 0.002 * f64::from(n % 10)]);
    }
    let units = UnitChoice::from_f64(&[1.0]).unwrap();
    let work = profiles.work(&key(), &units, Prior::default(), Prior::default()).unwrap();
    let expected = work.least().seconds;
    let total = profiles.overdue(&key(), &work, Units::cores(1), expected);
    assert!(total > expected && total < 1.2 * expected, "{total} of {expected}");
}

#[test]
fn of_what_nothing_is_known_the_late_will_be_as_late_again() {
    let units = UnitChoice::from_f64(&[1.0]).unwrap();
    let said = Prior { seconds: Some(2.0), serial: None };
    let mut profiles = Profiles::default();
    let work = profiles.work(&key(), &units, Prior::default(), said).unwrap();
    let total = |elapsed: f64| profiles.overdue(&key(), &work, Units::cores(1), elapsed);
    assert!((2.05..2.2).contains(&total(2.0)), "{}", total(2.0));
    assert!((7.9..8.1).contains(&total(5.0)), "{}", total(5.0));
}
