//! Patterns of image references, programs and paths.

/// True when `text` matches `pattern`, where `*` stands for any characters.
pub(super) fn glob(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else {
        return false;
    };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn globs_match_whole_references() {
        assert!(glob("*", "anything"));
        assert!(glob("registry.local/*", "registry.local/team/image:1"));
        assert!(glob("python:3.*-slim", "python:3.11-slim"));
        assert!(!glob("python:3.*-slim", "python:3.11"));
        assert!(!glob("python", "python:3"));
        assert!(!glob("registry.local/*", "evil/registry.local/image"));
    }

    proptest! {
        #[test]
        fn a_text_matches_itself_and_any_cut_of_it(text in "[a-z/:.]{0,12}", cut in 0usize..13) {
            prop_assert!(glob(&text, &text));
            let cut = cut.min(text.len());
            let pattern = format!("{}*", &text[..cut]);
            prop_assert!(glob(&pattern, &text));
            let pattern = format!("*{}", &text[cut..]);
            prop_assert!(glob(&pattern, &text));
        }
    }
}
