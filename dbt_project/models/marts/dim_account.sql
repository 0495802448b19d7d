with details as (
  select * from {{ ref('sat_account_details_v1') }} where is_current and not is_deleted
),
owner as (
  select link.hk_account, hub_user.hk_user, hub_user.user_id
  from {{ ref('link_account_user') }} as link
  join {{ ref('eff_sat_account_user_v1') }} as effectivity on effectivity.hk_account_user = link.hk_account_user
  left join {{ ref('hub_user') }} as hub_user on hub_user.hk_user = link.hk_user
  where effectivity.is_current and effectivity.is_active
)
select
  hub.hk_account,
  hub.account_id,
  owner.hk_user,
  owner.user_id,
  details.currency,
  details.balance,
  details.created_at,
  details.valid_from
from {{ ref('hub_account') }} as hub
join details on details.hk_account = hub.hk_account
left join owner on owner.hk_account = hub.hk_account
