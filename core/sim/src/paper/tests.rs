//! Rows are well formed, and no number of a text decides its own result.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Better, Figure, Outcome, Row, figures};

/// The figure of a row.
fn figure(name: &str) -> Figure {
    let is_of = |figure: &Figure| figure.rows.iter().any(|row| row.name == name);
    figures().into_iter().find(is_of).unwrap()
}

fn measure(figure: &Figure, seed: u64) -> Vec<f64> {
    figure.measure(seed, &mut || Duration::ZERO).unwrap()
}

#[test]
fn names_are_unique_and_every_row_says_where_it_is_from() {
    let figures = figures();
    let rows: Vec<Row> = figures.iter().flat_map(|figure| figure.rows.clone()).collect();
    let names: BTreeSet<&str> = rows.iter().map(|row| row.name).collect();
    assert_eq!(names.len(), rows.len());
    for row in rows {
        assert!(["000", "001", "002", "003", "004"].contains(&&row.source[..3]), "{row:?}");
        assert!(!row.quantity.is_empty() && row.paper > 0.0, "{row:?}");
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        assert!(row.name.bytes().all(plain), "{row:?}");
    }
    for figure in figures {
        assert!(!figure.rows.is_empty());
        assert!(figure.is_measured() != figure.why().is_some_and(|why| !why.is_empty()));
        assert!(!figure.is_measured() || !figure.assumptions.is_empty(), "{figure:?}");
    }
}

#[test]
fn the_longest_of_many_is_what_the_integral_says() {
    // E[max of K] of a log-normal with mean 1 is the integral of 1 - F(x)^K, with
    // F(x) = (1 + erf((ln x + s^2 / 2) / (s sqrt 2))) / 2 and s^2 = ln 2 for a cv of 1.
    let variance = 2.0_f64.ln();
    let below = |x: f64| {
        let z = (x.ln() + variance / 2.0) / variance.sqrt();
        0.5 * (1.0 + erf(z / 2.0_f64.sqrt()))
    };
    let longest = |k: i32| -> f64 {
        let step = 1e-3;
        (0..200_000).map(|i| step * (1.0 - below((f64::from(i) + 0.5) * step).powi(k))).sum()
    };
    let figure = figure("long-tail-max-16");
    let measured = measure(&figure, 1);
    for (name, k) in [("long-tail-max-4", 4), ("long-tail-max-16", 16), ("long-tail-max-64", 64)] {
        let at = figure.rows.iter().position(|row| row.name == name).unwrap();
        let (got, want) = (measured[at], longest(k));
        assert!((got / want - 1.0).abs() < 0.03, "{name}: {got}, by hand {want}");
    }
}

/// Abramowitz and Stegun 7.1.26, to 1.5e-7.
fn erf(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.327_591_1 * x.abs());
    let terms = [0.254_829_592, -0.284_496_736, 1.421_413_741, -1.453_152_027, 1.061_405_429];
    let sum = terms.iter().rev().fold(0.0, |sum, term| (sum + term) * t);
    (1.0 - sum * (-x * x).exp()).copysign(x)
}

#[test]
fn what_a_text_says_does_not_decide_what_is_measured() {
    for name in ["darts-pruned-share", "long-tail-continuous", "rollart-redundant"] {
        let honest = figure(name);
        let mut changed = honest.clone();
        for row in &mut changed.rows {
            row.paper *= 100.0;
        }
        assert_eq!(measure(&honest, 3), measure(&changed, 3), "{name}");
        assert_eq!(measure(&honest, 3).len(), honest.rows.len(), "{name}");
    }
}

#[test]
fn a_seed_draws_the_same_and_another_one_another() {
    let figure = figure("rollart-redundant");
    assert_eq!(measure(&figure, 7), measure(&figure, 7));
    assert_ne!(measure(&figure, 7), measure(&figure, 8));
}

#[test]
fn a_row_that_falls_short_says_by_how_much() {
    let row = |name, better| Row { name, source: "001", quantity: "q", paper: 4.0, better };
    let figure = Figure::simulated(
        [row("a", Better::Higher), row("b", Better::Lower), row("c", Better::Equal)],
        &["none"],
        |_| Ok([3.0, 3.0, 3.0]),
    );
    let outcomes = Outcome::of(&figure, &[vec![2.0, 2.0, 2.0], vec![4.0, 4.0, 4.0]]);
    let shortfalls: Vec<Option<f64>> = outcomes.iter().map(|outcome| outcome.shortfall).collect();
    assert_eq!(shortfalls, [Some(0.25), Some(0.0), Some(0.25)]);
    assert!(outcomes.iter().all(|outcome| outcome.ours == Some(3.0) && outcome.seeds == 2));
    assert_eq!(outcomes[0].interval, Some([2.0, 4.0]));
    let beyond = Outcome::of(&Figure::beyond([row("d", Better::Higher)], "hardware"), &[]);
    assert_eq!((beyond[0].ours, beyond[0].why, beyond[0].seeds), (None, Some("hardware"), 0));
}
