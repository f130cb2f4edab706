//! Amounts of money and durations, read from their text exactly. No float ever touches money.

/// Reads a positive amount of USD as nano-USD: `0.10`, `3`, `0.000001`.
///
/// # Errors
/// What is wrong, in words.
pub fn usd_nanos(text: &str) -> Result<i64, String> {
    decimal(text, 9).and_then(|nanos| if nanos == 0 { Err("must be more than 0".to_owned()) } else { Ok(nanos) })
}

/// Reads a price in USD for a million tokens as pico-USD a token. Zero is a price.
///
/// # Errors
/// What is wrong, in words.
pub fn pico_per_token(text: &str) -> Result<i64, String> {
    decimal(text, 6)
}

/// Reads a decimal number without sign or exponent, scaled by a power of ten.
fn decimal(text: &str, places: usize) -> Result<i64, String> {
    let example = "write a plain decimal number such as 0.10";
    if text.starts_with('-') {
        return Err("must not be negative".to_owned());
    }
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || text.ends_with('.') {
        return Err(format!("`{text}` is not an amount; {example}"));
    }
    let fraction = fraction.trim_end_matches('0');
    if fraction.len() > places {
        return Err(format!("`{text}` has more than {places} decimal places"));
    }
    let scaled = format!("{whole}{fraction:0<places$}");
    scaled.parse().map_err(|_| format!("`{text}` is too large"))
}

/// Reads a duration as milliseconds: `20ms`, `2s`, `15m`, `1h`.
///
/// # Errors
/// What is wrong, in words.
pub fn duration_ms(text: &str) -> Result<i64, String> {
    let split = text.find(|char: char| !char.is_ascii_digit() && char != '.').unwrap_or(text.len());
    let (amount, unit) = text.split_at(split);
    let unit_ms: i64 = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(format!("`{text}` is not a duration; write a number and a unit, such as 20ms, 2s, 15m or 1h")),
    };
    let thousandths =
        decimal(amount, 3).map_err(|_| format!("`{text}` is not a duration; write a number and a unit, such as 20ms, 2s, 15m or 1h"))?;
    let ms = thousandths.checked_mul(unit_ms).map(|scaled| scaled / 1000);
    ms.ok_or_else(|| format!("`{text}` is too long"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_is_exact() {
        assert_eq!(usd_nanos("0.10"), Ok(100_000_000));
        assert_eq!(usd_nanos("3"), Ok(3_000_000_000));
        assert_eq!(usd_nanos("0.000000001"), Ok(1));
        for bad in ["0", "0.00", "-1", "NaN", ".nan", "1e308", "1_000", "0.0000000001", "", ".5", "5.", "99999999999"] {
            assert!(usd_nanos(bad).is_err(), "{bad}");
        }
        assert_eq!(pico_per_token("2.00"), Ok(2_000_000));
        assert_eq!(pico_per_token("0"), Ok(0));
    }

    #[test]
    fn durations_have_units() {
        assert_eq!(duration_ms("20ms"), Ok(20));
        assert_eq!(duration_ms("1.5s"), Ok(1500));
        assert_eq!(duration_ms("15m"), Ok(900_000));
        for bad in ["", "5", "s", "-1s", "1w", "1e3s", "999999999999999h"] {
            assert!(duration_ms(bad).is_err(), "{bad}");
        }
    }
}
