{#- Written by `lakehouse scaffold`, its own while unchanged: f9a951a4970d633e -#}
{{ cdc_vault.sat(
  src_pk='hk_user',
  src_hashdiff='hd_user_details',
  src_payload=['email', 'name', 'created_at'],
  source_model='stg_bank__users',
) }}
