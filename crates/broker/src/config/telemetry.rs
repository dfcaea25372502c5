//! Spans for a collector of OpenTelemetry: table `[telemetry]`.

use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize};

use super::service_url::ServiceUrl;

/// Spans for a collector of OpenTelemetry.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Telemetry {
    /// URL of the collector, behind which the path of traces follows; `None` = there are no spans.
    #[serde(deserialize_with = "collector")]
    pub otlp: Option<ServiceUrl>,
    /// Share of the messages without `traceparent` for which the broker begins a trace, 0 to 1.
    #[serde(deserialize_with = "ratio")]
    pub root_ratio: f64,
}

fn collector<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ServiceUrl>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.is_empty() {
        return Ok(None);
    }
    if text.contains(['?', '#']) {
        return Err(D::Error::custom("needs to be an URL without query and fragment, as `/v1/traces` follows"));
    }
    ServiceUrl::try_from(text).map(Some).map_err(D::Error::custom)
}

fn ratio<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let ratio = f64::deserialize(deserializer)?;
    if (0.0..=1.0).contains(&ratio) { Ok(ratio) } else { Err(D::Error::custom("needs to be from 0 to 1")) }
}

#[cfg(test)]
mod tests {
    use crate::Config;

    #[test]
    fn errors_in_telemetry_name_key_and_line() {
        for (keys, word) in [
            ("otlp = 'collector:4318'", "otlp: needs to be an URL with http:// or https://"),
            ("otlp = 'http://collector:4318/?a=b'", "otlp: needs to be an URL without query"),
            ("oltp = 'http://collector:4318'", "oltp"),
            ("root_ratio = 1.5", "root_ratio: needs to be from 0 to 1"),
            ("root_ratio = nan", "root_ratio: needs to be from 0 to 1"),
            ("root_ratio = '1'", "root_ratio"),
        ] {
            let error = Config::parse(&format!("[telemetry]\n{keys}\n")).unwrap_err().to_string();
            assert!(error.contains("line 2") && error.contains(word), "{keys}: {error}");
        }
        let config = Config::parse("[telemetry]\notlp = 'http://127.0.0.1:4318'\nroot_ratio = 1\n").unwrap();
        let telemetry = config.telemetry;
        assert_eq!(
            (telemetry.otlp.map(|url| url.to_string()), telemetry.root_ratio),
            (Some("http://127.0.0.1:4318".into()), 1.0)
        );
    }
}
