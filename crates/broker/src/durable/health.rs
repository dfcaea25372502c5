use tenbin_store::state::Health;

/// One line for each change.
pub(super) fn log(health: &Health) {
    match health {
        Health::Failed { error, .. } => tracing::error!(
            %error,
            "the state cannot be written: nothing is acknowledged that has to be kept, until it can"
        ),
        _ => tracing::info!("the state is written again, and so is what waited"),
    }
}
