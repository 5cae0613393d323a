//! Reads Kubernetes quantities (`3920m`, `16Gi`, `1e3`).

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Factors of suffixes, in thousandths.
const UNITS: [(&str, u128); 13] = [
    ("Ki", 1000 << 10),
    ("Mi", 1000 << 20),
    ("Gi", 1000 << 30),
    ("Ti", 1000 << 40),
    ("Pi", 1000 << 50),
    ("Ei", 1000 << 60),
    ("m", 1),
    ("k", 1_000_000),
    ("M", 1_000_000_000),
    ("G", 1_000_000_000_000),
    ("T", 1_000_000_000_000_000),
    ("P", 1_000_000_000_000_000_000),
    ("E", 1_000_000_000_000_000_000_000),
];

/// A quantity in thousandths, rounded up; none when it is not a quantity, or below nought.
pub fn milli(quantity: &Quantity) -> Option<u64> {
    let text = quantity.0.as_str();
    // The common case without a suffix is quick: capacities of 1,000 nodes are read often.
    if let Ok(whole) = text.parse::<u64>() {
        return whole.checked_mul(1000);
    }
    let exponent = text.find(['e', 'E']).filter(|at| at + 1 < text.len());
    if let Some(at) = exponent.filter(|_| !text.ends_with('i')) {
        let power: i32 = text[at + 1..].parse().ok()?;
        let value: f64 = text[..at].parse().ok()?;
        let value = (value * 10_f64.powi(power.checked_add(3)?)).ceil();
        return (0.0..9e18).contains(&value).then_some(value as u64);
    }
    for (suffix, nano) in [("n", 1_000_000_u64), ("u", 1_000)] {
        if let Some(number) = text.strip_suffix(suffix) {
            return Some(number.parse::<u64>().ok()?.div_ceil(nano));
        }
    }
    let (number, factor) = UNITS
        .iter()
        .find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, *factor)))
        .unwrap_or((text, 1000));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if number.is_empty() || fraction.len() > 9 || !digits(whole) || !digits(fraction) {
        return None;
    }
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let value: u128 = format!("{whole}{fraction}").parse().ok()?;
    u64::try_from(value.checked_mul(factor)?.div_ceil(scale)).ok()
}

/// A quantity in whole units, rounded up.
pub fn units(quantity: &Quantity) -> Option<u64> {
    milli(quantity).map(|milli| milli.div_ceil(1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_writes_them() {
        let cases = [
            ("4", 4000),
            ("3920m", 3920),
            ("0.5", 500),
            ("1.5Gi", 1_610_612_736_000),
            ("16307332Ki", 16_698_707_968_000),
            ("2k", 2_000_000),
            ("1e3", 1_000_000),
            ("12E", 12_000_000_000_000_000_000_000),
            ("100u", 1),
            ("1500000n", 2),
        ];
        for (text, milli) in cases {
            let read = super::milli(&Quantity(text.to_owned())).map(u128::from);
            let expected = Some(milli).filter(|milli| u64::try_from(*milli).is_ok());
            assert_eq!(read, expected, "{text}");
        }
        for text in ["", "Gi", "-1", "1.2.3", "x"] {
            assert_eq!(milli(&Quantity(text.to_owned())), None, "{text}");
        }
    }
}
