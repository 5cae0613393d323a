//! The longest a trajectory may be, and what nearing it costs.

/// A length cap in tokens of the whole context: prompt, generated and observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LengthCap {
    /// No trajectory is longer.
    pub tokens: u32,
    /// Tokens before the cap over which the reward falls linearly; `None`: it does not.
    pub soft_penalty_tokens: Option<u32>,
}

impl LengthCap {
    /// What is added to the reward of a trajectory of `tokens` tokens, from 0 to -1: the
    /// soft overlong punishment of DAPO (arXiv 2503.14476, eq. 13), 0 up to
    /// `soft_penalty_tokens` before the cap and -1 at the cap.
    pub fn penalty(&self, tokens: usize) -> f64 {
        let Some(span) = self.soft_penalty_tokens.filter(|span| *span > 0) else { return 0.0 };
        let free = f64::from(self.tokens) - f64::from(span);
        -((tokens as f64 - free) / f64::from(span)).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn falls_linearly_to_the_cap() {
        let cap = LengthCap { tokens: 100, soft_penalty_tokens: Some(20) };
        let percent = |cap: LengthCap, tokens| (cap.penalty(tokens) * 100.0).round() as i32;
        assert_eq!(
            [0, 80, 90, 100, 500].map(|tokens| percent(cap, tokens)),
            [0, 0, -50, -100, -100]
        );
        let hard = LengthCap { tokens: 100, soft_penalty_tokens: None };
        assert_eq!(percent(hard, 100), 0);
    }
}
