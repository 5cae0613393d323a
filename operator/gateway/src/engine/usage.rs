//! The token counts at the end of a reply, found without reading the rest.

use memchr::memmem;
use rollwright_core::router::Usage;

/// How far from its end a reply is searched.
const TAIL: usize = 512;

/// Reads `usage` (OpenAI) or `meta_info` (`SGLang`). What is not there counts as zero.
pub fn find(reply: &[u8]) -> Usage {
    let tail = &reply[reply.len().saturating_sub(TAIL)..];
    let count = |name: &[u8]| number_after(tail, name).unwrap_or(0);
    Usage {
        prompt_tokens: count(b"\"prompt_tokens\""),
        cached_tokens: count(b"\"cached_tokens\""),
        output_tokens: count(b"\"completion_tokens\""),
    }
}

fn number_after(text: &[u8], name: &[u8]) -> Option<u32> {
    let rest = &text[memmem::rfind(text, name)? + name.len()..];
    let digits = rest.iter().skip_while(|byte| matches!(byte, b':' | b' '));
    let digits: Vec<u8> = digits.take_while(|byte| byte.is_ascii_digit()).copied().collect();
    std::str::from_utf8(&digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_stand_at_the_end() {
        let reply = br#"{"choices":[{"message":{"content":"\"prompt_tokens\": 9"}}],"usage":{"prompt_tokens": 12,"completion_tokens":34,"total_tokens":46,"prompt_tokens_details":{"cached_tokens":5}}}"#;
        let usage = Usage { prompt_tokens: 12, cached_tokens: 5, output_tokens: 34 };
        assert_eq!(find(reply), usage);
        for nothing in [&b""[..], b"{}", b"\"prompt_tokens\"", b"\"prompt_tokens\":x"] {
            assert_eq!(find(nothing), Usage::default());
        }
        assert_eq!(find(b"\"prompt_tokens\":99999999999999").prompt_tokens, 0);
    }
}
