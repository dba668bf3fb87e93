//! `mainstem monitoring`: dashboards for Grafana and alerts for Prometheus, made of the metrics that the broker has.
//!
//! They are in the binary, so that they fit its version. Tests parse every expression, and check that it uses metrics
//! and labels of the tables that the metrics are written from.

mod alerts;
mod dashboards;

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::cli::MonitoringCommand;

/// A dashboard.
struct Dashboard {
    /// Last word of its title, and its name on the command line.
    name: &'static str,
    panels: &'static [Panel],
}

/// A graph.
struct Panel {
    title: &'static str,
    unit: Unit,
    /// Expressions with the text of their legends.
    series: &'static [(&'static str, &'static str)],
}

/// Unit of a panel, by the names of Grafana.
#[derive(Clone, Copy)]
enum Unit {
    Count,
    PerSecond,
    Bytes,
    BytesPerSecond,
    Seconds,
    Share,
}

/// An alert.
struct Alert {
    name: &'static str,
    /// It is raised while this has values.
    expr: &'static str,
    /// For how long that must be so, in Prometheus's notation.
    lasts: &'static str,
    is_critical: bool,
    summary: &'static str,
    /// What to do.
    description: &'static str,
}

/// Prints what a subcommand asks for.
pub(crate) fn run(command: &MonitoringCommand) -> Result<(), String> {
    let text = match command {
        MonitoringCommand::Dashboard { name } => {
            let dashboard = dashboards::ALL.iter().find(|dashboard| dashboard.name == name.name());
            let dashboard = dashboard.ok_or_else(|| format!("there is no dashboard {name:?}"))?;
            let json = serde_json::to_string_pretty(&dashboard.json());
            json.map_err(|error| error.to_string())? + "\n"
        }
        MonitoringCommand::Alerts => rules(alerts::ALL),
    };
    crate::print(&text)
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Self::Count => "short",
            Self::PerSecond => "ops",
            Self::Bytes => "bytes",
            Self::BytesPerSecond => "Bps",
            Self::Seconds => "s",
            Self::Share => "percentunit",
        }
    }
}

impl Dashboard {
    /// The model that Grafana imports: two panels side by side, with a choice of the data source and the instances.
    fn json(&self) -> Value {
        let panels: Vec<Value> =
            (0_usize..).zip(self.panels).map(|(index, panel)| panel.json(index)).collect();
        let instances = "label_values(mainstem_build_info, instance)";
        json!({
            "uid": format!("mainstem-{}", self.name),
            "title": format!("Mainstem {}", self.name),
            "tags": ["mainstem"],
            "schemaVersion": 39,
            "refresh": "10s",
            "time": { "from": "now-1h", "to": "now" },
            "templating": { "list": [
                { "name": "datasource", "type": "datasource", "query": "prometheus" },
                {
                    "name": "instance",
                    "type": "query",
                    "datasource": { "type": "prometheus", "uid": "${datasource}" },
                    "definition": instances,
                    "query": { "query": instances, "refId": "instance" },
                    "refresh": 2,
                    "multi": true,
                    "includeAll": true,
                },
            ] },
            "panels": panels,
        })
    }
}

impl Panel {
    fn json(&self, index: usize) -> Value {
        let source = json!({ "type": "prometheus", "uid": "${datasource}" });
        let targets: Vec<Value> = ('A'..)
            .zip(self.series)
            .map(|(id, (expr, legend))| {
                json!({
                    "refId": id.to_string(),
                    "datasource": source,
                    "expr": expr,
                    "legendFormat": legend,
                })
            })
            .collect();
        json!({
            "id": index + 1,
            "type": "timeseries",
            "title": self.title,
            "datasource": source,
            "gridPos": { "x": index % 2 * 12, "y": index / 2 * 8, "w": 12, "h": 8 },
            "fieldConfig": { "defaults": { "unit": self.unit.name(), "min": 0 }, "overrides": [] },
            "options": { "tooltip": { "mode": "multi", "sort": "desc" } },
            "targets": targets,
        })
    }
}

/// A file of alerting rules for Prometheus.
fn rules(alerts: &[Alert]) -> String {
    let mut text = "groups:\n  - name: mainstem\n    rules:\n".to_owned();
    for Alert { name, expr, lasts, is_critical, summary, description } in alerts {
        let severity = if *is_critical { "critical" } else { "warning" };
        write!(
            text,
            "      - alert: {name}\n        expr: {}\n        for: {lasts}\n        labels:\n          severity: {severity}\n        \
             annotations:\n          summary: {}\n          description: {}\n",
            quoted(expr),
            quoted(summary),
            quoted(description),
        )
        .expect("writing to a string cannot fail");
    }
    text
}

/// Text as a scalar of YAML: in single quotes nothing is special but they themselves.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use mainstem_metrics::{Kind, Metric};
    use promql_parser::parser::{self, Expr};
    use promql_parser::util::{ExprVisitor, walk_expr};

    use super::*;
    use crate::process_metrics::all_metrics;

    /// The metrics that an expression uses, each with the labels that it selects by.
    #[derive(Default)]
    struct Selectors(Vec<(String, BTreeSet<String>)>);

    impl ExprVisitor for Selectors {
        type Error = std::convert::Infallible;

        fn pre_visit(&mut self, expr: &Expr) -> Result<bool, Self::Error> {
            let selector = match expr {
                Expr::VectorSelector(selector) => Some(selector),
                Expr::MatrixSelector(range) => Some(&range.vs),
                _ => None,
            };
            if let Some(selector) = selector {
                let labels = selector.matchers.matchers.iter().map(|matcher| matcher.name.clone());
                self.0.push((selector.name.clone().unwrap_or_default(), labels.collect()));
            }
            Ok(true)
        }
    }

    /// Names of the series of all metrics, with their labels.
    fn series() -> BTreeMap<String, BTreeSet<&'static str>> {
        let mut all = BTreeMap::new();
        for Metric { name, kind, labels, .. } in all_metrics() {
            let labels: BTreeSet<&str> = labels.iter().copied().chain(["instance", "job"]).collect();
            if kind == Kind::Histogram {
                for suffix in ["_bucket", "_sum", "_count"] {
                    let le = (suffix == "_bucket").then_some("le");
                    all.insert(format!("{name}{suffix}"), labels.iter().copied().chain(le).collect());
                }
            } else {
                all.insert(name.to_owned(), labels);
            }
        }
        all
    }

    fn check(what: &str, expr: &str) {
        let expr = expr.replace("$__rate_interval", "5m");
        let parsed = parser::parse(&expr).unwrap_or_else(|error| panic!("{what}: {expr}: {error}"));
        let mut selectors = Selectors::default();
        walk_expr(&mut selectors, &parsed).unwrap();
        assert!(!selectors.0.is_empty(), "{what}: {expr} uses no metric");
        let known = series();
        for (name, labels) in selectors.0 {
            if name == "up" {
                continue;
            }
            let of_metric = known.get(&name).unwrap_or_else(|| panic!("{what}: there is no metric {name}"));
            for label in labels {
                assert!(of_metric.contains(label.as_str()), "{what}: {name} has no label {label}");
            }
        }
    }

    #[test]
    fn dashboards_use_what_there_is() {
        for Dashboard { name, panels } in dashboards::ALL {
            let mut titles = BTreeSet::new();
            for Panel { title, series, .. } in *panels {
                assert!(titles.insert(*title), "{name}: two panels {title}");
                for (expr, legend) in *series {
                    check(&format!("{name}, {title}"), expr);
                    assert!(expr.contains("instance=~\"$instance\""), "{name}, {title}: all instances");
                    assert!(!legend.is_empty(), "{name}, {title}");
                }
            }
        }
    }

    #[test]
    fn alerts_use_what_there_is() {
        let mut names = BTreeSet::new();
        for Alert { name, expr, summary, .. } in alerts::ALL {
            assert!(name.starts_with("Mainstem") && names.insert(*name), "{name}");
            check(name, expr);
            assert!(summary.contains("{{ $labels.instance }}"), "{name}: which instance?");
        }
    }

    #[test]
    fn a_dashboard_is_a_grid_of_panels() {
        let dashboard = dashboards::ALL[0].json();
        let panels = dashboard["panels"].as_array().unwrap();
        assert_eq!(panels.len(), dashboards::ALL[0].panels.len());
        assert_eq!((&panels[3]["gridPos"]["x"], &panels[3]["gridPos"]["y"]), (&json!(12), &json!(8)));
    }

    #[test]
    fn rules_are_quoted() {
        const ALERT: Alert = Alert {
            name: "A",
            expr: "x{y='z'} > 0",
            lasts: "1m",
            is_critical: true,
            summary: "it's: so",
            description: "d",
        };
        let expected = "groups:\n  - name: mainstem\n    rules:\n      - alert: A\n        expr: 'x{y=''z''} > 0'\n        for: 1m\n        labels:\n          severity: critical\n        annotations:\n          summary: 'it''s: so'\n          description: 'd'\n";
        assert_eq!(rules(&[ALERT]), expected);
    }
}
