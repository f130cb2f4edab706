//! The providers that a daemon knows, by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Provider;
use super::scripted::ScriptedProvider;

/// The providers that a daemon knows, by name.
#[derive(Clone)]
pub struct Providers {
    by_name: BTreeMap<String, Arc<dyn Provider>>,
}

impl Providers {
    /// Returns the scripted provider alone.
    pub fn scripted_only() -> Self {
        let scripted: Arc<dyn Provider> = Arc::new(ScriptedProvider);
        Self { by_name: BTreeMap::from([("scripted".to_owned(), scripted)]) }
    }

    /// Adds a provider, or replaces the one of that name.
    pub fn insert(&mut self, name: &str, provider: Arc<dyn Provider>) {
        self.by_name.insert(name.to_owned(), provider);
    }

    /// Returns the provider of that name.
    pub fn get(&self, name: &str) -> Option<Arc<dyn Provider>> {
        self.by_name.get(name).cloned()
    }

    /// Returns all names.
    pub fn names(&self) -> Vec<String> {
        self.by_name.keys().cloned().collect()
    }
}
