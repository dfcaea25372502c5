//! `scale` of share groups, and the example for KEDA that reads it.

use serde_json::{Value, json};

use crate::admin::stage::Stage;
use crate::support::ConfigFile;

const STANDING: &str = "[[share]]\ngroup = \"pool\"\nfilter = \"jobs/#\"\nkeep_seconds = 600\n";

/// Documents of the example.
fn example() -> Vec<Value> {
    let text = include_str!("../../../deploy/keda/workers.yaml");
    text.split("\n---\n").map(|document| serde_saphyr::from_str(document).expect("YAML")).collect()
}

/// Keys of an object.
fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap_or_else(|| panic!("{value} is no object")).keys().map(String::as_str).collect()
}

#[test]
fn standing_group_without_members_needs_none() {
    let file = ConfigFile::new(STANDING);
    let stage = Stage::start(&["--config", file.path()]);
    let scale = stage.get_json("/api/v1/groups/pool/jobs%2F%23/scale");
    assert_eq!((&scale["desired"], &scale["members"], &scale["backlog"]), (&json!(0), &json!(0), &json!(0)), "{scale}");
}

/// The fields are those of KEDA's `ScaledObject`, `TriggerAuthentication` and scaler `metrics-api`, which refuse or ignore
/// others.
#[test]
fn example_for_keda_has_fields_of_its_schema() {
    let [secret, authentication, scaled] = &example()[..] else { panic!("three documents") };
    for (document, version, kind) in [
        (secret, "v1", "Secret"),
        (authentication, "keda.sh/v1alpha1", "TriggerAuthentication"),
        (scaled, "keda.sh/v1alpha1", "ScaledObject"),
    ] {
        assert_eq!((&document["apiVersion"], &document["kind"]), (&json!(version), &json!(kind)));
    }
    let target = &authentication["spec"]["secretTargetRef"][0];
    assert_eq!(keys(&authentication["spec"]), ["secretTargetRef"]);
    // The scaler takes the token of `authMode: bearer` by this name.
    assert_eq!((&target["parameter"], &target["name"]), (&json!("token"), &secret["metadata"]["name"]));
    assert!(secret["stringData"][target["key"].as_str().expect("a name")].is_string());

    let spec = &scaled["spec"];
    let of_spec = [
        "scaleTargetRef",
        "pollingInterval",
        "cooldownPeriod",
        "initialCooldownPeriod",
        "idleReplicaCount",
        "minReplicaCount",
        "maxReplicaCount",
        "fallback",
        "advanced",
        "triggers",
    ];
    assert!(keys(spec).iter().all(|key| of_spec.contains(key)), "{spec}");
    let advanced = &spec["advanced"];
    let of_advanced = ["restoreToOriginalReplicaCount", "horizontalPodAutoscalerConfig", "scalingModifiers"];
    assert!(keys(advanced).iter().all(|key| of_advanced.contains(key)), "{advanced}");
    let behavior = &advanced["horizontalPodAutoscalerConfig"]["behavior"];
    for direction in keys(behavior) {
        assert!(["scaleUp", "scaleDown"].contains(&direction));
        let rules = keys(&behavior[direction]);
        assert!(rules.iter().all(|key| ["stabilizationWindowSeconds", "policies", "selectPolicy"].contains(key)));
    }
    let trigger = &spec["triggers"][0];
    let of_trigger = ["type", "name", "metadata", "authenticationRef", "metricType", "useCachedMetrics"];
    assert!(keys(trigger).iter().all(|key| of_trigger.contains(key)), "{trigger}");
    assert_eq!(trigger["authenticationRef"]["name"], authentication["metadata"]["name"]);
    assert_eq!((&trigger["type"], &trigger["metricType"]), (&json!("metrics-api"), &json!("AverageValue")));
    let metadata = &trigger["metadata"];
    let of_metadata = [
        "url",
        "valueLocation",
        "targetValue",
        "activationTargetValue",
        "format",
        "authMode",
        "method",
        "keyParamName",
        "unsafeSsl",
        "aggregationType",
    ];
    assert!(keys(metadata).iter().all(|key| of_metadata.contains(key)), "{metadata}");
    assert!(metadata.as_object().expect("an object").values().all(Value::is_string), "KEDA takes strings: {metadata}");
    assert_eq!((&metadata["targetValue"], &metadata["authMode"]), (&json!("1"), &json!("bearer")));

    let file = ConfigFile::new(STANDING);
    let stage = Stage::start(&["--config", file.path()]);
    let url = metadata["url"].as_str().expect("a URL").strip_prefix("http://").expect("HTTP");
    let (_, path) = url.split_once('/').expect("a path");
    let answer = stage.get_json(&format!("/{path}"));
    assert!(answer[metadata["valueLocation"].as_str().expect("a name")].is_number(), "{answer}");
}
