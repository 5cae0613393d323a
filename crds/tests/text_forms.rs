//! Sizes, times and names survive being written and read, and no text makes them panic.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::time::Duration;

use proptest::prelude::*;
use rollwright_crds::{ByteSize, Name, TimeSpan, parse};

proptest! {
    #[test]
    fn sizes_survive(bytes in 1_u64..=1 << 60) {
        let size = ByteSize::try_from(bytes).unwrap();
        prop_assert_eq!(size.to_string().parse::<ByteSize>().unwrap(), size);
        prop_assert_eq!(size.bytes(), bytes);
    }

    #[test]
    fn sizes_of_whole_units_survive(count in 1_u64..1 << 19, power in 0_u32..=4) {
        let size = ByteSize::try_from(count << (10 * power)).unwrap();
        let text = serde_json::to_string(&size).unwrap();
        prop_assert_eq!(serde_json::from_str::<ByteSize>(&text).unwrap(), size);
    }

    #[test]
    fn times_survive(millis in 1_u64..1_000_000 * 3_600_000) {
        let span = TimeSpan::try_from(Duration::from_millis(millis)).unwrap();
        let text = serde_json::to_string(&span).unwrap();
        prop_assert_eq!(serde_json::from_str::<TimeSpan>(&text).unwrap(), span);
        prop_assert_eq!(span.duration(), Duration::from_millis(millis));
    }

    #[test]
    fn names_are_what_the_rule_says(text in "[a-zA-Z0-9.\\-_]{0,70}") {
        let rule = regex::Regex::new("^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$").unwrap();
        prop_assert_eq!(text.parse::<Name>().is_ok(), rule.is_match(&text) && text.len() <= 63);
    }

    #[test]
    fn sizes_are_what_the_rule_says(text in "[0-9]{0,20}(\\.[0-9]{0,4})?(k|M|G|Ki|Mi|Ti|B|m)?") {
        let rule = regex::Regex::new("^[0-9]{1,19}([.][0-9]{1,3})?(k|M|G|T|Ki|Mi|Gi|Ti)?$").unwrap();
        match text.parse::<ByteSize>() {
            Ok(_) => prop_assert!(rule.is_match(&text)),
            Err(rollwright_crds::quantity::ByteSizeError::Malformed(_)) => prop_assert!(!rule.is_match(&text)),
            Err(_) => {}
        }
    }

    #[test]
    fn times_are_what_the_rule_says(text in "([0-9]{0,7}h)?([0-9]{0,7}m)?([0-9]{0,10}s)?([0-9]{0,3}ms)?") {
        let rule = regex::Regex::new("^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,9}s)?([0-9]{1,9}ms)?$").unwrap();
        let fits = !text.is_empty() && rule.is_match(&text);
        match text.parse::<TimeSpan>() {
            Ok(_) => prop_assert!(fits),
            Err(rollwright_crds::duration::TimeSpanError::Malformed(_)) => prop_assert!(!fits),
            Err(_) => {}
        }
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in any::<String>()) {
        drop(parse::documents("t", &text));
        drop(text.parse::<ByteSize>());
        drop(text.parse::<TimeSpan>());
    }
}

#[test]
fn known_forms_mean_what_they_say() {
    for (text, bytes) in
        [("512Mi", 512 << 20), ("1.5Gi", 3 << 29), ("2G", 2_000_000_000), ("0.0015k", 2)]
    {
        let parsed = text.parse::<ByteSize>();
        // Four decimals are refused; the others are exact.
        assert_eq!(
            parsed.ok().map(ByteSize::bytes),
            (text != "0.0015k").then_some(bytes),
            "{text}"
        );
    }
    for (text, millis) in [("30s", 30_000), ("1h30m", 5_400_000), ("250ms", 250), ("1m1ms", 60_001)]
    {
        assert_eq!(text.parse::<TimeSpan>().unwrap().duration().as_millis(), millis, "{text}");
    }
}
