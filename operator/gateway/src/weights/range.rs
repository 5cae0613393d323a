//! One byte range of a bucket (RFC 9110, 14).

use http::HeaderValue;

/// What a `Range` header asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// All of it: no header, one that is not understood, or several ranges.
    Whole,
    /// Bytes `start` to `end`, `end` exclusive.
    Part { start: u64, end: u64 },
    /// Nothing of it lies inside.
    Unsatisfiable,
}

/// Reads the header for a file of `length` bytes.
pub(super) fn wanted(header: Option<&HeaderValue>, length: u64) -> Wanted {
    let text = header.and_then(|header| header.to_str().ok());
    let Some((first, last)) = text
        .and_then(|text| text.trim().strip_prefix("bytes="))
        .and_then(|text| text.split_once('-'))
    else {
        return Wanted::Whole;
    };
    let number = |text: &str| -> Option<u64> {
        let text = text.trim();
        text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
    };
    match (number(first), number(last)) {
        (Some(start), _) if last.trim().is_empty() => part(start, length, length),
        (Some(start), Some(last)) if last >= start => {
            part(start, last.saturating_add(1).min(length), length)
        }
        (None, Some(count)) if first.trim().is_empty() => {
            part(length - count.min(length), length, length)
        }
        _ => Wanted::Whole,
    }
}

fn part(start: u64, end: u64, length: u64) -> Wanted {
    if start < length { Wanted::Part { start, end } } else { Wanted::Unsatisfiable }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_as_the_rfc_has_them() {
        use Wanted::{Part, Unsatisfiable, Whole};
        for (header, length, expected) in [
            ("bytes=0-0", 10, Part { start: 0, end: 1 }),
            ("bytes=3-", 10, Part { start: 3, end: 10 }),
            ("bytes=3-99", 10, Part { start: 3, end: 10 }),
            ("bytes=-4", 10, Part { start: 6, end: 10 }),
            ("bytes=-99", 10, Part { start: 0, end: 10 }),
            ("bytes=10-", 10, Unsatisfiable),
            ("bytes=-0", 10, Unsatisfiable),
            ("bytes=0-", 0, Unsatisfiable),
            ("bytes=5-4", 10, Whole),
            ("bytes=0-1,3-4", 10, Whole),
            ("bytes=+1-2", 10, Whole),
            ("bytes=18446744073709551616-", 10, Whole),
            ("bytes=0-18446744073709551615", 10, Part { start: 0, end: 10 }),
            ("items=0-1", 10, Whole),
            ("bytes=-", 10, Whole),
        ] {
            let header = HeaderValue::from_static(header);
            assert_eq!(wanted(Some(&header), length), expected, "{header:?}");
        }
        assert_eq!(wanted(None, 10), Whole);
    }
}
