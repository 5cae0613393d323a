//! The reward of a trajectory, from the exit code and the summary of pytest.

use serde::Serialize;

/// What the test suite said, or why there is no reward.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) enum Verdict {
    /// The suite ran in a pristine sandbox.
    Scored {
        /// 1 when the whole suite passed, else 0.
        reward: f64,
        /// Tests that passed.
        passed: u32,
        /// Tests that pass in the unchanged package.
        expected: u32,
    },
    /// Nothing was learned about the edit: this must not become a reward of 0.
    Unscored {
        /// Why.
        reason: String,
    },
}

/// Counts of the last summary line of pytest, `3 failed, 1189 passed in 2.46s`.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Summary {
    passed: u32,
    failed: u32,
    errors: u32,
}

/// Grades a run of pytest that ended by itself with an exit code, or by a signal.
pub(crate) fn grade(exit_code: Option<i32>, output: &str, expected: u32) -> Verdict {
    let scored = |reward, passed| Verdict::Scored { reward, passed, expected };
    if output.contains("Different tests were collected between") {
        let reason = "the workers of pytest-xdist collected different tests".to_owned();
        return Verdict::Unscored { reason };
    }
    match exit_code {
        // Some tests ran; a suite that lost tests did not pass.
        Some(code @ (0 | 1)) => match summary(output) {
            Some(s) => {
                let whole = code == 0 && s.failed + s.errors == 0 && s.passed >= expected;
                scored(if whole { 1.0 } else { 0.0 }, s.passed)
            }
            None => Verdict::Unscored {
                reason: format!("pytest ended with {code} but printed no summary"),
            },
        },
        // Collection was interrupted, conftest did not import, or no test was found.
        Some(2 | 4 | 5) => scored(0.0, 0),
        Some(code) => Verdict::Unscored {
            reason: format!("pytest could not do its work: it ended with {code}"),
        },
        None => Verdict::Unscored { reason: "a signal ended pytest".to_owned() },
    }
}

fn summary(output: &str) -> Option<Summary> {
    output.lines().rev().find_map(|line| {
        let (counts, _) = line.trim().trim_matches('=').trim().rsplit_once(" in ")?;
        let mut summary = Summary::default();
        for part in counts.split(", ") {
            let (number, what) = part.split_once(' ')?;
            let number: u32 = number.parse().ok()?;
            match what {
                "passed" => summary.passed = number,
                "failed" => summary.failed = number,
                "error" | "errors" => summary.errors = number,
                _ => {}
            }
        }
        Some(summary)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scored(reward: f64, passed: u32) -> Verdict {
        Verdict::Scored { reward, passed, expected: 1192 }
    }

    #[test]
    fn reads_the_summary_past_subtests_and_decoration() {
        let output = "....\n=== 3 failed, 1189 passed, 7 subtests passed in 62.46s (0:01:02) ===\n";
        assert_eq!(summary(output), Some(Summary { passed: 1189, failed: 3, errors: 0 }));
        assert_eq!(
            summary("1 warning, 1 error in 0.61s"),
            Some(Summary { errors: 1, ..Summary::default() })
        );
        assert_eq!(summary("no tests ran in 1s\nimagine passed in vain\n"), None);
    }

    #[test]
    fn a_whole_suite_scores_one_and_anything_less_zero() {
        assert_eq!(grade(Some(0), "1192 passed in 2.18s", 1192), scored(1.0, 1192));
        assert_eq!(grade(Some(1), "3 failed, 1189 passed in 2s", 1192), scored(0.0, 1189));
        assert_eq!(grade(Some(0), "12 passed in 2s", 1192), scored(0.0, 12), "tests were lost");
        assert_eq!(grade(Some(2), "1 error in 0.1s", 1192), scored(0.0, 0));
    }

    #[test]
    fn what_says_nothing_about_the_edit_is_no_reward() {
        for (code, output) in
            [(None, ""), (Some(3), ""), (Some(127), "sh: not found"), (Some(1), "")]
        {
            assert!(matches!(grade(code, output, 1), Verdict::Unscored { .. }), "{code:?}");
        }
    }
}
