{#- Written by `lakehouse scaffold`, its own while unchanged: 654bd0d4b869fd5d -#}
{{ sat(
  src_pk='hk_user',
  src_hashdiff='hd_user_details',
  src_payload=['email', 'name', 'created_at'],
  source_model='stg_bank__users',
) }}
