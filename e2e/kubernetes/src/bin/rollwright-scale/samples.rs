//! Metrics in Prometheus' text format: what they say, and what came between two looks.

use std::collections::BTreeMap;

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

impl Sample {
    /// A label's value; empty where it has none.
    pub(crate) fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }

    /// The number.
    pub(crate) fn value(&self) -> f64 {
        self.value
    }

    fn parse(line: &str) -> Option<Self> {
        let (head, value) = line.rsplit_once(' ')?;
        let (name, mut rest) = head
            .split_once('{')
            .map_or((head, ""), |(name, rest)| (name, rest.strip_suffix('}').unwrap_or(rest)));
        let mut labels = BTreeMap::new();
        while let Some((label, quoted)) = rest.split_once("=\"") {
            // Values with quotes in them are escaped; none of those that are read here has any.
            let (value, after) = quoted.split_once('"')?;
            labels.insert(label.to_owned(), value.to_owned());
            rest = after.trim_start_matches(',');
        }
        let value = if value == "+Inf" { f64::INFINITY } else { value.parse().ok()? };
        Some(Self { name: name.to_owned(), labels, value })
    }
}

/// Everything that one look saw, or what changed between two.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples(Vec<Sample>);

impl Samples {
    /// Reads the text; of lines that are no samples nothing is kept.
    pub(crate) fn parse(text: &str) -> Self {
        Self(text.lines().filter(|line| !line.starts_with('#')).filter_map(Sample::parse).collect())
    }

    /// Counters since an earlier look.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let key = |sample: &Sample| (sample.name.clone(), sample.labels.clone());
        let earlier: BTreeMap<_, f64> =
            before.0.iter().map(|sample| (key(sample), sample.value)).collect();
        let change = |sample: &Sample| Sample {
            value: sample.value - earlier.get(&key(sample)).copied().unwrap_or(0.0),
            ..sample.clone()
        };
        Self(self.0.iter().map(change).collect())
    }

    /// The samples of one metric.
    pub(crate) fn of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Sample> {
        self.0.iter().filter(move |sample| sample.name == name)
    }

    /// Sums one metric by a label; what is zero is left out.
    pub(crate) fn by(&self, name: &str, label: &str) -> BTreeMap<String, f64> {
        let mut sums = BTreeMap::new();
        for sample in self.of(name).filter(|sample| sample.value != 0.0) {
            *sums.entry(sample.label(label).to_owned()).or_default() += sample.value;
        }
        sums
    }

    /// A histogram's quantile as Prometheus' `histogram_quantile` finds it: linear within a bucket.
    /// Of samples whose label has a value; none where nothing was observed.
    pub(crate) fn quantile(&self, histogram: &str, label: (&str, &str), q: f64) -> Option<f64> {
        let name = format!("{histogram}_bucket");
        let own = self.of(&name).filter(|sample| sample.label(label.0) == label.1);
        let mut buckets: Vec<(f64, f64)> = own
            .filter_map(|sample| {
                let bound = sample.label("le");
                let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().ok()? };
                Some((bound, sample.value))
            })
            .collect();
        buckets.sort_by(|left, right| left.0.total_cmp(&right.0));
        let rank = q * buckets.last().map(|(_, all)| *all).filter(|all| *all > 0.0)?;
        let (mut below, mut counted) = (0.0, 0.0);
        for (bound, count) in buckets {
            if count >= rank {
                let within = (rank - counted) / (count - counted).max(f64::MIN_POSITIVE);
                // Beyond the last bound nothing is known but that bound.
                return Some(if bound.is_finite() {
                    below + within * (bound - below)
                } else {
                    below
                });
            }
            (below, counted) = (bound, count);
        }
        Some(below)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
# HELP seconds Time
seconds_bucket{kind="job",le="0.1"} 50
seconds_bucket{kind="job",le="0.2"} 90
seconds_bucket{kind="job",le="+Inf"} 100
seconds_bucket{kind="pool",le="0.1"} 0
seconds_bucket{kind="pool",le="+Inf"} 0
requests_total{verb="get",code="200"} 3
requests_total{verb="get",code="404"} 1
requests_total{verb="apply",code="200"} 5e+01
plain 7
"#;

    #[test]
    fn counters_are_summed_and_compared() {
        let now = Samples::parse(TEXT);
        let sums = now.by("requests_total", "verb");
        assert_eq!(sums, BTreeMap::from([("get".into(), 4.0), ("apply".into(), 50.0)]));
        let before = Samples::parse("requests_total{verb=\"get\",code=\"200\"} 3\nplain 2");
        let change = now.since(&before);
        let sums = change.by("requests_total", "verb");
        assert_eq!(sums, BTreeMap::from([("get".into(), 1.0), ("apply".into(), 50.0)]));
        assert_eq!(change.of("plain").map(Sample::value).collect::<Vec<_>>(), [5.0]);
    }

    #[test]
    fn quantiles_are_linear_within_a_bucket() {
        let samples = Samples::parse(TEXT);
        let quantile = |q| samples.quantile("seconds", ("kind", "job"), q);
        assert_eq!(quantile(0.25), Some(0.05));
        assert!((quantile(0.7).unwrap() - 0.15).abs() < 1e-12);
        assert_eq!(quantile(0.99), Some(0.2), "nothing is known beyond the last bound");
        assert_eq!(samples.quantile("seconds", ("kind", "pool"), 0.5), None);
    }
}
