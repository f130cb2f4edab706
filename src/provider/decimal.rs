//! Decimal text to scaled integers, exactly: money never goes through a float.

/// Returns the number that `text` writes, times ten to the power of `scale`, rounded half up. Takes what JSON and YAML
/// write for a number that is not negative (`1.25`, `7.159e-05`); `None` for anything else and for what does not fit.
pub fn scaled(text: &str, scale: i32) -> Option<i64> {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Some(0);
    }
    let shift = i64::from(scale) + i64::from(exponent) - i64::try_from(fraction.len()).ok()?;
    if shift >= 0 {
        let factor = 10_i128.checked_pow(u32::try_from(shift).ok()?)?;
        return i64::try_from(digits.parse::<i128>().ok()?.checked_mul(factor)?).ok();
    }
    let dropped = usize::try_from(-shift).ok()?;
    if dropped > digits.len() {
        return Some(0);
    }
    let (kept, cut) = digits.split_at(digits.len() - dropped);
    let kept: i64 = if kept.is_empty() { 0 } else { kept.parse().ok()? };
    kept.checked_add(i64::from(cut.as_bytes().first().is_some_and(|digit| *digit >= b'5')))
}

#[cfg(test)]
mod tests {
    use super::scaled;

    #[test]
    fn decimals_are_read_exactly() {
        for (text, scale, right) in [
            ("1.25", 6, Some(1_250_000)),
            ("0.005", 6, Some(5_000)),
            ("7.159e-05", 9, Some(71_590)),
            ("0.0000000005", 9, Some(1)),
            ("0.0000000004999", 9, Some(0)),
            ("3", 9, Some(3_000_000_000)),
            ("0", 9, Some(0)),
            ("1e3", 0, Some(1000)),
            ("1e300", 9, None),
            ("-1", 9, None),
            ("NaN", 9, None),
            ("", 9, None),
            (".", 9, None),
            ("99999999999", 9, None),
        ] {
            assert_eq!(scaled(text, scale), right, "{text}");
        }
    }
}
