//! Number formats.

/// `1234567` as `1,234,567`.
pub fn count(value: u64) -> String {
    grouped(&value.to_string())
}

/// Three significant digits, but at least the integer part: `0.0123`, `1.23`, `45.6`, `1,234`.
pub fn short(value: f64) -> String {
    if !value.is_finite() {
        return DASH.to_owned();
    }
    let decimals = match value.abs() {
        0.0 => 0,
        size if size >= 100.0 => 0,
        size => (2 - size.log10().floor() as i32).clamp(0, 6) as usize,
    };
    fixed(value, decimals)
}

/// Milliseconds with three decimals, or one from 100 on; without a value a dash.
pub fn ms(value: impl Into<Option<f64>>) -> String {
    value.into().map_or(DASH.to_owned(), |value| fixed(value, if value < 100.0 { 3 } else { 1 }))
}

/// For a headline: one decimal below 10, else none.
pub fn brief(value: f64) -> String {
    if value.abs() < 0.1 { short(value) } else { fixed(value, usize::from(value.abs() < 9.95)) }
}

/// With `decimals` decimals; without a value a dash.
pub fn optional(value: Option<f64>, decimals: usize) -> String {
    value.filter(|value| value.is_finite()).map_or(DASH.to_owned(), |value| fixed(value, decimals))
}

/// With `decimals` decimals.
pub fn fixed(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    // A value that rounds to zero has no sign.
    let text = if text.trim_start_matches('-').bytes().all(|b| matches!(b, b'0' | b'.')) {
        text.trim_start_matches('-').to_owned()
    } else {
        text
    };
    match text.split_once('.') {
        Some((integer, fraction)) => format!("{}.{fraction}", grouped(integer)),
        None => grouped(&text),
    }
}

fn grouped(digits: &str) -> String {
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits), |rest| ("−", rest));
    let mut text = String::from(sign);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Stands for an unknown value.
pub const DASH: &str = "–";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_groups() {
        let cases =
            [(0.0, "0"), (0.012_34, "0.0123"), (1.0, "1.00"), (45.67, "45.7"), (123.4, "123"), (-1234.5, "−1,234")];
        for (value, text) in cases {
            assert_eq!(short(value), text);
        }
        assert_eq!(short(f64::NAN), "–");
        assert_eq!([0, 7, 999, 1000, 1_234_567].map(count), ["0", "7", "999", "1,000", "1,234,567"]);
        assert_eq!((ms(12.25), ms(150.0), ms(None)), ("12.250".into(), "150.0".into(), "–".into()));
        assert_eq!(
            (brief(2.91), brief(1489.2), brief(0.031), brief(9.97)),
            ("2.9".into(), "1,489".into(), "0.0310".into(), "10".into())
        );
        assert_eq!((optional(Some(2.0), 1), optional(Some(f64::NAN), 1)), ("2.0".into(), "–".into()));
        assert_eq!((fixed(-0.01, 1), fixed(12_345.67, 1)), ("0.0".into(), "12,345.7".into()));
    }
}
