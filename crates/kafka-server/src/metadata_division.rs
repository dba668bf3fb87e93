//! A Metadata request over so many topics that its response is made in parts, as data.
//!
//! A cluster may have more partitions than a turn can describe. What is left of the request is a value that gives one
//! part per turn; all parts are made from the catalogue as it was at first, so that the whole response is one
//! consistent state.

use std::sync::Arc;
use std::vec;

use mainstem_kafka::api::metadata::{MetadataRequest, MetadataRequestTopic};
use mainstem_partition::TopicId;

use crate::catalogue::{Catalogue, Topic};

/// Topics and partitions of a part.
const PART_ITEMS: usize = 500;

/// What is left of a request. All parts show the same catalogue.
#[derive(Debug)]
pub(crate) struct MetadataRest {
    /// Without its topics.
    request: MetadataRequest,
    catalogue: Arc<Catalogue>,
    topics: TopicsLeft,
}

#[derive(Debug)]
enum TopicsLeft {
    Named(vec::IntoIter<MetadataRequestTopic>),
    /// All of the catalogue, behind this one.
    All(Option<Arc<str>>),
}

/// A part of a request.
#[derive(Debug)]
pub(crate) struct MetadataPart {
    /// Without its topics.
    pub(crate) request: MetadataRequest,
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) topics: MetadataTopics,
}

/// The topics of a request, or of a part.
#[derive(Debug)]
pub(crate) enum MetadataTopics {
    Named(Vec<MetadataRequestTopic>),
    /// Topics of a request for all.
    Known(Vec<Arc<Topic>>),
}

impl MetadataRest {
    /// Prepares a request to be answered in parts, unless it is short. `is_all` if it is for all topics.
    ///
    /// # Errors
    /// Returns the request if it is no longer than a part.
    pub(crate) fn of(
        mut request: MetadataRequest,
        catalogue: &Arc<Catalogue>,
        is_all: bool,
    ) -> Result<Self, MetadataRequest> {
        let catalogue = Arc::clone(catalogue);
        if is_all {
            let items = catalogue.by_name.len() + catalogue.partitions.unsigned_abs() as usize;
            if items <= PART_ITEMS {
                return Err(request);
            }
            return Ok(Self { request, catalogue, topics: TopicsLeft::All(None) });
        }
        let topics = request.topics.take().unwrap_or_default();
        if part_len(&topics, |requested| partitions_of(&catalogue, requested)) == topics.len() {
            request.topics = Some(topics);
            return Err(request);
        }
        Ok(Self { request, catalogue, topics: TopicsLeft::Named(topics.into_iter()) })
    }

    /// Takes the next part; `None` if nothing is left.
    pub(crate) fn take_part(&mut self) -> Option<MetadataPart> {
        let topics = match &mut self.topics {
            TopicsLeft::Named(left) => {
                let len = part_len(left.as_slice(), |requested| partitions_of(&self.catalogue, requested));
                let named: Vec<_> = left.by_ref().take(len).collect();
                (!named.is_empty()).then_some(MetadataTopics::Named(named))?
            }
            TopicsLeft::All(behind) => {
                let known = known_part(&self.catalogue, behind.as_deref());
                *behind = Some(Arc::clone(&known.last()?.name));
                MetadataTopics::Known(known)
            }
        };
        let (request, catalogue) = (self.request.clone(), Arc::clone(&self.catalogue));
        Some(MetadataPart { request, catalogue, topics })
    }
}

/// Number of the first of these topics that make a part: at least one, if there is any.
fn part_len<T>(topics: &[T], partitions: impl Fn(&T) -> usize) -> usize {
    let mut items = 0;
    let fits = |topic: &&T| {
        let has_room = items < PART_ITEMS;
        items += 1 + partitions(topic);
        has_room
    };
    topics.iter().take_while(fits).count()
}

fn partitions_of(catalogue: &Catalogue, requested: &MetadataRequestTopic) -> usize {
    let by_name = requested.name.as_deref().and_then(|name| catalogue.topic(name));
    let known = by_name.or_else(|| catalogue.topic_by_id(TopicId(requested.topic_id.0)));
    known.map_or(0, |topic| topic.store_ids.len())
}

/// The next topics behind a name.
fn known_part(catalogue: &Catalogue, behind: Option<&str>) -> Vec<Arc<Topic>> {
    let is_behind = |topic: &&Arc<Topic>| behind != Some(&*topic.name);
    let topics = catalogue.by_name.from(behind.unwrap_or_default()).map(|(_, topic)| topic);
    let mut items = 0;
    let fits = |topic: &&Arc<Topic>| {
        let has_room = items < PART_ITEMS;
        items += 1 + topic.store_ids.len();
        has_room
    };
    topics.filter(is_behind).take_while(fits).cloned().collect()
}
