with details as (
  select * from {{ ref('sat_store_details_v1') }} where is_current and not is_deleted
)
select
  hub.hk_store,
  hub.store_id,
  details.store_name,
  details.city,
  details.state,
  details.opened_at,
  details.valid_from
from {{ ref('hub_store') }} as hub
join details on details.hk_store = hub.hk_store
