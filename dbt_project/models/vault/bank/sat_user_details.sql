{#- Written by `lakehouse scaffold`, its own while unchanged: 8d127492bbe89b46 -#}
{{ cdc_vault.sat(
  src_pk='hk_user',
  src_hashdiff='hd_user_details',
  src_payload=['email', 'name', 'created_at'],
  source_model='stg_bank__users',
  src_nk=['id'],
) }}
