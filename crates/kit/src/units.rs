//! The grammar of times and sizes, which configuration files and command lines share.

/// Nanoseconds of a time: a number and a unit, as `250us`, `10.7ms`, `15 s`, `2m` or `1h`. A number without a unit is in
/// seconds. `None` if the text is no time.
pub fn nanoseconds(text: &str) -> Option<f64> {
    let (number, unit) = number_and_unit(text)?;
    let factor = match unit {
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "" | "s" => 1e9,
        "m" | "min" => 60e9,
        "h" => 3600e9,
        _ => return None,
    };
    Some(number * factor)
}

/// Bytes of a size: `100`, `100B`, `16kB`, `64KiB`, `10MB`, `1MiB` or `1GiB`. `None` if the text is no whole number of
/// them, or more than 10^15.
pub fn bytes(text: &str) -> Option<u64> {
    let (number, unit) = number_and_unit(text)?;
    let bytes = number * byte_unit(unit)?;
    (bytes.fract() == 0.0 && (0.0..=1e15).contains(&bytes)).then_some(bytes as u64)
}

/// `1.5 ms` as 1.5 and `ms`. Digits may be grouped by `_`.
pub fn number_and_unit(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(text.len());
    let number = text[..end].replace('_', "").parse::<f64>().ok()?;
    Some((number, text[end..].trim()))
}

/// Bytes of a unit of sizes.
pub fn byte_unit(unit: &str) -> Option<f64> {
    Some(match unit {
        "" | "B" => 1.0,
        "kB" | "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        "GiB" => 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    })
}

/// A number with at most `decimals` decimals, without zeros at its end.
pub fn trimmed(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}
