/// Appends `port` to `text` unless it has one: `host`, `host:1883`, `::1`, `[::1]`, `[::1]:1883`.
pub(crate) fn with_port(text: &str, port: u16) -> String {
    let has_port = match text.rsplit_once(':') {
        Some((host, number)) => number.parse::<u16>().is_ok() && (!host.contains(':') || host.ends_with(']')),
        None => false,
    };
    match text {
        text if has_port => text.to_owned(),
        // An IPv6 address contains colons itself.
        text if text.contains(':') && !text.starts_with('[') => format!("[{text}]:{port}"),
        text => format!("{text}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_added_where_there_is_none() {
        for (text, expected) in [
            ("lab", "lab:4500"),
            ("lab:1", "lab:1"),
            ("10.0.0.1", "10.0.0.1:4500"),
            ("::1", "[::1]:4500"),
            ("[::1]", "[::1]:4500"),
            ("[::1]:7", "[::1]:7"),
        ] {
            assert_eq!(with_port(text, 4500), expected);
        }
    }
}
