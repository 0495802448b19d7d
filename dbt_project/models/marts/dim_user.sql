with details as (
  select * from {{ ref('sat_user_details_v1') }} where is_current and not is_deleted
)
select
  hub.hk_user,
  hub.user_id,
  details.email,
  details.name,
  details.created_at,
  details.valid_from
from {{ ref('hub_user') }} as hub
join details on details.hk_user = hub.hk_user
