//! What is learned, against random truths.

use proptest::prelude::*;

use super::*;

/// A generator of its own, so that a seed says all.
struct Random(u64);

impl Random {
    fn uniform(&mut self) -> f64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Box and Muller.
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

/// Actions of which the truth is known.
#[derive(Debug, Clone, Copy)]
struct Truth {
    /// Mean seconds on one core.
    seconds: f64,
    serial: f64,
    /// Deviation of a duration's logarithm.
    sigma: f64,
}

const DEGREES: [f64; 4] = [1.0, 2.0, 4.0, 8.0];

impl Truth {
    fn random(random: &mut Random) -> Self {
        let seconds = 10f64.powf(random.uniform() * 4.0 - 1.0);
        Self { seconds, serial: random.uniform(), sigma: random.uniform() * 0.5 }
    }

    fn mean(self, units: f64) -> f64 {
        self.seconds * (self.serial + (1.0 - self.serial) / units.max(1.0))
    }

    /// One that used as many cores as it could.
    fn sample(self, units: f64, random: &mut Random) -> Sample {
        let factor = (self.sigma * random.normal() - self.sigma * self.sigma / 2.0).exp();
        let seconds = self.mean(units) * factor;
        sample(units, seconds, seconds * self.seconds / self.mean(units))
    }

    fn error(self, work: &Work) -> f64 {
        let relative = |units: f64| (seconds(work, units) / self.mean(units) - 1.0).abs();
        DEGREES.iter().copied().map(relative).fold(0.0, f64::max)
    }
}

fn key(n: usize) -> ProfileKey {
    ProfileKey { job: JobId::new("j").unwrap(), profile: format!("p{n}").into() }
}

fn choice(units: &[f64]) -> UnitChoice {
    UnitChoice::from_f64(units).unwrap()
}

fn sample(units: f64, seconds: f64, cpu: f64) -> Sample {
    Sample { units: Units::from_f64(units).unwrap(), seconds, cpu_seconds: Some(cpu) }
}

/// With so many units, or the next fewer that are of use.
fn seconds(work: &Work, units: f64) -> f64 {
    let fits = work.choices().iter().rfind(|choice| choice.units.as_f64() <= units);
    fits.unwrap().seconds
}

fn work(profiles: &mut Profiles, prior: Prior) -> Work {
    profiles.work(&key(0), &choice(&DEGREES), prior, Prior::default()).unwrap()
}

fn median(mut errors: Vec<f64>) -> f64 {
    errors.sort_by(f64::total_cmp);
    errors[errors.len() / 2]
}

/// The largest relative error of the four degrees after fifty actions, in the median
/// over 200 random truths. `prior` is what the manifest says, as a factor of the truth.
fn median_error(prior: Option<f64>) -> f64 {
    let mut random = Random(7);
    let errors = (0..200).map(|_| {
        let truth = Truth::random(&mut random);
        let mut profiles = Profiles::default();
        for _ in 0..50 {
            let units = DEGREES[(random.uniform() * 4.0) as usize];
            profiles.learn(&key(0), truth.sample(units, &mut random));
        }
        let prior = Prior { seconds: prior.map(|factor| factor * truth.seconds), serial: None };
        truth.error(&work(&mut profiles, prior))
    });
    median(errors.collect())
}

#[test]
fn fifty_actions_teach_durations_to_a_tenth() {
    let error = median_error(None);
    assert!(error < 0.1, "{error}");
}

/// Fifty actions that use a part of a core, each another part: how much slower the estimate
/// takes them to be on a smaller share is how much of a core it takes them to use.
#[test]
fn fifty_actions_teach_the_use_of_cpu_to_a_tenth() {
    let mut random = Random(11);
    let share = 0.125;
    let errors = (0..200).map(|_| {
        let used = 0.2 + 0.3 * random.uniform();
        let sigma = random.uniform() * 0.5;
        let mut profiles = Profiles::default();
        for _ in 0..50 {
            let noise = (sigma * random.normal() - sigma * sigma / 2.0).exp();
            let duration = 1.0 + 20.0 * random.uniform();
            profiles.learn(&key(0), sample(1.0, duration, duration * used * noise));
        }
        let (units, nothing) = (choice(&[share, 1.0]), Prior::default());
        let work = profiles.work(&key(0), &units, nothing, nothing).unwrap();
        let slower = work.least().seconds / seconds(&work, 1.0);
        (slower * share / used - 1.0).abs()
    });
    let error = median(errors.collect());
    assert!(error < 0.1, "{error}");
}

#[test]
fn a_prior_ten_times_wrong_is_soon_forgotten() {
    for factor in [10.0, 0.1] {
        let error = median_error(Some(factor));
        assert!(error < 0.1, "{factor}: {error}");
    }
    let mut profiles = Profiles::default();
    let prior = Prior { seconds: Some(100.0), serial: Some(0.0) };
    let unknown = seconds(&work(&mut profiles, prior), 1.0);
    assert!((unknown - 100.0).abs() < 1e-6, "as the manifest says: {unknown}");
    for _ in 0..5 {
        profiles.learn(&key(0), sample(1.0, 10.0, 10.0));
    }
    let after_five = seconds(&work(&mut profiles, prior), 1.0);
    assert!((10.0..11.5).contains(&after_five), "{after_five}");
}

#[test]
fn it_follows_a_drift() {
    let mut profiles = Profiles::default();
    for n in 0..800 {
        let duration = if n < 300 { 100.0 } else { 10.0 };
        profiles.learn(&key(0), sample(1.0, duration, duration));
    }
    let now = seconds(&work(&mut profiles, Prior::default()), 1.0);
    assert!((10.0..12.5).contains(&now), "{now}");
}

#[test]
fn without_a_second_degree_the_serial_part_is_the_manifests() {
    let mut profiles = Profiles::default();
    for _ in 0..20 {
        profiles.learn(&key(0), sample(4.0, 7.0, 7.0));
    }
    let prior = Prior { seconds: None, serial: Some(0.6) };
    let work = work(&mut profiles, prior);
    assert!((seconds(&work, 4.0) - 7.0).abs() < 1e-6);
    assert!((seconds(&work, 1.0) - 10.0).abs() < 1e-6, "0.6 + 0.4 / 4 = 0.7 of it");
}

#[test]
fn what_is_slower_on_more_cores_is_known_to_be() {
    let mut profiles = Profiles::default();
    // The first found cold files.
    for (units, seconds) in [(1.0, 4.0), (2.0, 2.6), (1.0, 1.9), (2.0, 2.6), (1.0, 1.9)] {
        profiles.learn(&key(0), sample(units, seconds, seconds));
    }
    let work = work(&mut profiles, Prior::default());
    assert_eq!(work.at_most(2).units, Units::cores(1), "{work:?}");
    let one = seconds(&work, 1.0);
    assert!((1.9..2.4).contains(&one), "{one}");
}

#[test]
fn what_is_said_of_an_action_is_not_learned_over() {
    let mut profiles = Profiles::default();
    for _ in 0..50 {
        profiles.learn(&key(0), sample(1.0, 1.0, 1.0));
    }
    let said = Prior { seconds: Some(30.0), serial: Some(0.5) };
    let work = profiles.work(&key(0), &choice(&DEGREES), Prior::default(), said).unwrap();
    assert_eq!((seconds(&work, 1.0), seconds(&work, 2.0)), (30.0, 22.5));
    for said in [(Some(-1.0), None), (Some(f64::NAN), None), (None, Some(1.5))] {
        let said = Prior { seconds: said.0, serial: said.1 };
        let refused = profiles.work(&key(0), &choice(&DEGREES), Prior::default(), said);
        assert!(refused.is_err(), "{said:?}");
    }
}

#[test]
fn a_light_action_shares_a_core_and_a_heavy_one_is_promoted() {
    let units = choice(&[0.25, 1.0]);
    let mut profiles = Profiles::default();
    let mut learned = |units_of: f64, seconds: f64, cpu: f64| {
        for _ in 0..10 {
            profiles.learn(&key(0), sample(units_of, seconds, cpu));
        }
        profiles.work(&key(0), &units, Prior::default(), Prior::default()).unwrap()
    };
    // It mostly waits: a core of its own would not make it quicker.
    let light = learned(1.0, 2.0, 0.1);
    assert_eq!(light.choices().len(), 1);
    assert!(light.least().units.is_share());
    assert!((light.least().seconds - 2.0).abs() < 0.1, "{light:?}");
    // Then it uses all of its share: a core of its own is worth its while.
    let heavy = learned(0.25, 8.0, 2.0);
    assert_eq!(heavy.choices().len(), 2, "{heavy:?}");
    assert!(heavy.choices()[0].seconds > 2.0 * heavy.choices()[1].seconds, "{heavy:?}");
}

#[test]
fn nonsense_teaches_nothing() {
    let mut profiles = Profiles::default();
    profiles.learn(&key(0), sample(1.0, 5.0, 5.0));
    let before = work(&mut profiles, Prior::default());
    for seconds in [f64::NAN, f64::INFINITY, -1.0] {
        assert!(!profiles.learn(&key(0), sample(1.0, seconds, 1.0)));
    }
    assert_eq!(work(&mut profiles, Prior::default()), before);
}

#[test]
fn only_so_many_are_kept_the_latest_used() {
    let mut profiles = Profiles::new(3);
    for n in 0..3 {
        profiles.learn(&key(n), sample(1.0, 50.0, 50.0));
    }
    profiles.learn(&key(0), sample(1.0, 50.0, 50.0));
    profiles.learn(&key(3), sample(1.0, 50.0, 50.0));
    assert_eq!(profiles.len(), 3);
    let mut known = |n: usize| {
        let nothing = Prior::default();
        let work = profiles.work(&key(n), &choice(&[1.0]), nothing, nothing).unwrap();
        (work.least().seconds - 50.0).abs() < 1e-6
    };
    assert!(known(0) && known(3) && known(2));
    assert!(!known(1), "it was used longest ago");
}

#[test]
fn one_that_outlasts_its_estimate_is_expected_with_those_that_did() {
    let mut profiles = Profiles::default();
    for n in 0..100 {
        let duration = if n % 10 == 0 { 100.0 } else { 1.0 };
        profiles.learn(&key(0), sample(1.0, duration, duration));
    }
    let work = work(&mut profiles, Prior::default());
    let total = profiles.overdue(&key(0), &work, Units::cores(1), 20.0);
    assert!((95.0..105.0).contains(&total), "{total}");
    let unheard_of = profiles.overdue(&key(0), &work, Units::cores(1), 500.0);
    assert!(unheard_of > 500.0);
}

proptest! {
    /// Against the sorted values.
    #[test]
    fn quantiles_are_near(values in prop::collection::vec(1e-3..1e5_f64, 1..400), at in 0.0..1.0_f64) {
        let mut sketch = Sketch::default();
        for value in &values {
            sketch.insert(*value);
        }
        let mut sorted = values.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (at * sorted.len() as f64).ceil().max(1.0) as usize - 1;
        let exact = sorted[rank.min(sorted.len() - 1)];
        let near = sketch.quantile(at).unwrap();
        prop_assert!((near / exact - 1.0).abs() <= 0.026, "{near} for {exact}");
        let pivot = sorted[sorted.len() / 2];
        if let Some(above) = sketch.median_above(pivot) {
            prop_assert!(above > pivot * 0.97);
        }
    }
}

#[test]
fn what_was_learned_can_be_kept_and_taken_up_again() {
    let mut random = Random(3);
    let truth = Truth { seconds: 40.0, serial: 0.3, sigma: 0.4 };
    let mut before = Profiles::default();
    for n in 0..200 {
        before.learn(&key(0), truth.sample(DEGREES[n % 4], &mut random));
    }
    let kept = before.take_changed();
    assert_eq!(kept.len(), 1);
    assert!(!before.has_changed() && before.take_changed().is_empty(), "said once");
    let mut after = Profiles::default();
    after.restore(&kept[0]);
    assert!(after.contains(&key(0)) && !after.has_changed());
    let known = work(&mut before, Prior::default());
    assert_eq!(work(&mut after, Prior::default()), known);
    for elapsed in [1.0, 40.0, 90.0, 1e6] {
        let overdue =
            |profiles: &Profiles| profiles.overdue(&key(0), &known, Units::cores(1), elapsed);
        assert_eq!(overdue(&after).to_bits(), overdue(&before).to_bits());
    }
}

#[test]
fn what_no_measurement_could_have_left_is_passed_over() {
    let level = |weight: f64, mean: f64| KeptLevel { units: Units::cores(1), weight, mean };
    let kept = Kept {
        key: key(0),
        levels: vec![
            level(f64::NAN, 1.0),
            level(-1.0, 1.0),
            level(1.0, f64::INFINITY),
            level(1.0, 0.0),
        ],
        buckets: vec![(i32::MAX, 1.0), (0, f64::NAN), (0, -3.0)],
        cores_used: Some((f64::INFINITY, 1.0)),
    };
    let mut profiles = Profiles::default();
    let unknown = work(&mut profiles, Prior::default());
    profiles.restore(&kept);
    assert_eq!(work(&mut profiles, Prior::default()), unknown);
    assert!(profiles.overdue(&key(0), &unknown, Units::cores(1), 5.0).is_finite());
}

#[test]
fn of_what_is_forgotten_nothing_is_kept() {
    let mut profiles = Profiles::new(2);
    for n in 0..5 {
        profiles.learn(&key(n), sample(1.0, 1.0, 1.0));
    }
    let kept: Vec<ProfileKey> = profiles.take_changed().into_iter().map(|kept| kept.key).collect();
    assert_eq!(kept, [key(3), key(4)]);
}
